"""The table's arithmetic once more, in plain NumPy: what the tests of kernels/ compare with."""

import hashlib

import numpy as np
import numpy.typing as npt

from kernels.layout import FTRL, SGD, AdaGrad, Adam, RowAdaGrad, RowLayout

F32 = np.float32
Row = npt.NDArray[np.float32]
GOLDEN = 0x9E3779B97F4A7C15
M64 = 2**64 - 1


def mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def unmix64(x: int) -> int:
    x = _unshift(x, 31) * pow(0x94D049BB133111EB, -1, 2**64) & M64
    x = _unshift(x, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & M64
    return _unshift(x, 30)


def _unshift(x: int, by: int) -> int:
    result = x
    for _ in range(64 // by + 1):
        result = x ^ result >> by
    return result


def table_seed(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


def signed(x: int) -> int:
    return x - 2**64 if x >> 63 else x


def initial_row(layout: RowLayout, name: str, seed: int, key: int) -> Row:
    """float32[stride]: initial values and state of a key."""
    stream = mix64(mix64(key & M64) ^ table_seed(name, seed))
    row = np.zeros(layout.stride, F32)
    state = layout.dim
    for segment in layout.segments:
        at = layout.slice(segment.name)
        for i in range(at.start, at.stop):
            if segment.init_scale:
                bits = mix64(stream + (i >> 1) * GOLDEN & M64) >> 32 * (i & 1) & 0xFFFFFFFF
                row[i] = F32(segment.init_scale) * (F32(np.int32(np.uint32(bits))) * F32(2**-31))
        size = segment.optimiser.state_floats(segment.dim)
        match segment.optimiser:
            case AdaGrad(initial=initial):
                row[state : state + size] = initial
            case FTRL(alpha, beta, l1, l2):
                w = row[at]
                row[state : state + segment.dim] = -w * (F32(beta) / F32(alpha) + F32(l2)) - np.sign(w) * F32(
                    l1
                )
                row[state + 2 * segment.dim] = alpha
        state += size
    return row


def updated_row(layout: RowLayout, row: Row, grad: Row, factor: float = 1.0) -> Row:
    """float32[stride] after one step with the summed gradient float32[D] and rates times `factor`."""
    row = row.copy()
    state = layout.dim
    for segment in layout.segments:
        at = layout.slice(segment.name)
        size = segment.optimiser.state_floats(segment.dim)
        w, s, g, n = row[at], row[state : state + size], grad[at], segment.dim
        match segment.optimiser:
            case SGD(lr):
                w -= F32(lr * factor) * g
            case RowAdaGrad(lr, eps):
                squares = np.zeros(-(-n // 8) * 8, F32)
                squares[:n] = g * g
                lanes = np.zeros(8, F32)
                for eight in squares.reshape(-1, 8):
                    lanes += eight
                for width in (4, 2, 1):
                    lanes = lanes[:width] + lanes[width:]
                s += lanes[0] / F32(n)
                w -= F32(lr * factor) / (np.sqrt(s[0]) + F32(eps)) * g
            case AdaGrad(lr, eps):
                s += g * g
                w -= F32(lr * factor) * g / (np.sqrt(s) + F32(eps))
            case Adam(lr, eps, beta1, beta2):
                b1, b2 = F32(beta1), F32(beta2)
                s[2 * n] = b1 * s[2 * n] + F32(1 - beta1)
                s[2 * n + 1] = b2 * s[2 * n + 1] + F32(1 - beta2)
                s[:n] = b1 * s[:n] + F32(1 - beta1) * g
                s[n : 2 * n] = b2 * s[n : 2 * n] + F32(1 - beta2) * g * g
                w -= F32(lr * factor) * (s[:n] / s[2 * n]) / (np.sqrt(s[n : 2 * n] / s[2 * n + 1]) + F32(eps))
            case FTRL(alpha, beta, l1, l2):
                z, total, before, rate = s[:n], s[n : 2 * n], s[2 * n], F32(alpha * factor)
                step = F32(0) if before == rate else F32(1) / rate - F32(1) / before
                root = np.sqrt(total)
                total += g * g
                z += g - ((np.sqrt(total) - root) / rate + (F32(beta) + root) * step) * w
                rate = (F32(beta) + np.sqrt(total)) / rate + F32(l2)
                s[2 * n] = F32(alpha * factor)
                w[:] = np.where(np.abs(z) <= F32(l1), F32(0), -(z - np.copysign(F32(l1), z)) / rate)
        state += size
    return row
