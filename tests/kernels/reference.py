"""NumPy reference of the table's arithmetic, for the tests of kernels/."""

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch

from livectr.kernels.table.layout import FTRL, SGD, AdaGrad, Adam, Adaptive, RowAdaGrad, RowLayout, Values

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
    base = stream(name, seed, key)
    row = np.zeros(layout.stride, F32)
    state = layout.dim
    for segment in layout.segments:
        at = layout.slice(segment.name)
        for i in range(at.start, at.stop):
            if segment.init_scale:
                bits = mix64(base + (i >> 1) * GOLDEN & M64) >> 32 * (i & 1) & 0xFFFFFFFF
                row[i] = F32(segment.init_scale) * (F32(np.int32(np.uint32(bits))) * F32(2**-31))
        row[at] = nearest(row[at], layout.values)
        size = segment.optimiser.state_floats(segment.dim)
        match segment.optimiser:
            case AdaGrad(initial=initial) | Adaptive(AdaGrad(initial=initial)):
                row[state : state + size] = initial
            case FTRL(alpha, beta, l1, l2):
                w = row[at]
                row[state : state + segment.dim] = -w * (F32(beta) / F32(alpha) + F32(l2)) - np.sign(w) * F32(
                    l1
                )
                row[state + 2 * segment.dim] = alpha
        state += size
        if isinstance(segment.optimiser, Adaptive):
            row[state - 1] = 0
    return row


def stream(name: str, seed: int, key: int) -> int:
    """Start of a key's random numbers."""
    return mix64(mix64(key & M64) ^ table_seed(name, seed))


def nearest(values: Row, kind: Values) -> Row:
    """float32[D] rounded to the nearest number of the type; no number of it is larger than its largest."""
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
    most = torch.finfo(dtype).max
    return torch.from_numpy(values).to(dtype).clamp(-most, most).float().numpy()


def rounded(values: Row, kind: Values, base: int, updates: int) -> Row:
    """float32[D] rounded up or down by the random bits of a row's update, in exact arithmetic."""
    if kind == "fp32":
        return values
    chance = mix64(base ^ 0x5EED0F2B17E5 + updates)
    digits, least, bits = {"fp16": (11, -14, 13), "bf16": (8, -126, 16)}[kind]
    out = []
    for i, x in enumerate(values.astype(np.float64).tolist()):
        random = mix64(chance + i // 4 * 4 * GOLDEN & M64) >> 16 * (i % 4) & 0xFFFF
        subnormal = abs(x) < 2.0**least
        unit = 2.0 ** (max(math.frexp(x)[1] - 1, least) - digits + 1)
        whole, part = divmod(abs(x) / unit, 1.0)
        if kind == "fp16" and subnormal:
            up = part > random / 2**16
        else:
            up = int(part * 2**bits) + random % 2**bits >= 2**bits
        out.append(math.copysign((whole + up) * unit, x))
    return np.array(out, F32)


def updated_row(layout: RowLayout, row: Row, grad: Row, factor: float = 1.0, base: int = 0) -> Row:
    """float32[stride] after one step with the summed gradient float32[D] and rates times `factor`.

    base: the key's `stream`, which values of 2 bytes are rounded by.
    """
    row = row.copy()
    if layout.values != "fp32":
        plain = RowLayout(layout.segments)
        after = updated_row(plain, row[:-1], grad, factor)
        after[: layout.dim] = rounded(after[: layout.dim], layout.values, base, int(row[-1]))
        return np.append(after, (row[-1] + 1) % F32(2**24))
    state = layout.dim
    for segment in layout.segments:
        at = layout.slice(segment.name)
        size = segment.optimiser.state_floats(segment.dim)
        w, s, g, n = row[at], row[state : state + size], grad[at], segment.dim
        optimiser = segment.optimiser
        if isinstance(optimiser, Adaptive):
            s[-1] += s[-1] < 2**24
            g = g + F32(optimiser.l2) / s[-1] * w
            optimiser, s = optimiser.base, s[:-1]
        match optimiser:
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
                divisor = (F32(beta) + np.sqrt(total)) / rate + F32(l2)
                s[2 * n] = F32(alpha * factor)
                w[:] = np.where(np.abs(z) <= F32(l1), F32(0), -(z - np.copysign(F32(l1), z)) / divisor)
        state += size
    return row
