"""The automaton's arrays, whatever the number of states with rows of their own."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from livectr.kernels.operators.keywords import automaton
from livectr.kernels.runtime.compiler import compile_host

SOURCE = """
#include "operators/keywords.cuh"
struct Found {
    int32_t* at;
    void push(int32_t word) { *at++ = word; }
};
extern "C" int64_t find_all(const uint8_t* text, int64_t size, const int64_t* members, int32_t* out) {
    Keywords k;
    memcpy((void*)&k, members, sizeof(k));
    Found found{out};
    keywords(Str{text, int32_t(size)}, k, found);
    return found.at - out;
}
"""


def found(words: list[bytes], text: bytes, dense: int) -> list[int]:
    arrays = automaton(words, dense)
    members = np.array([*(array.ctypes.data for array in arrays), len(arrays[0])], np.int64)
    data, out = np.frombuffer(text, np.uint8), np.empty(len(words), np.int32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (data, members, out)]
    find_all = compile_host(SOURCE, name="keywords").find_all
    size = find_all(pointers[0], ctypes.c_int64(len(text)), *pointers[1:])
    return out[:size].tolist()


@pytest.mark.parametrize("dense", [1, 2, 7, 100, 4096])
def test_every_word_is_found_once_in_order(dense: int) -> None:
    rng = random.Random(dense)
    for alphabet in (b"ab", b"abcdefgh", bytes(range(256))):
        words = list({bytes(rng.choices(alphabet, k=rng.randint(1, 7))) for _ in range(120)})
        for _ in range(12):
            text = b"".join(rng.choices(words, k=rng.randint(1, 9))) + bytes(rng.choices(alphabet, k=30))
            assert found(words, text, dense) == [i for i, word in enumerate(words) if word in text]


def test_one_long_word() -> None:
    word = b"ab" * 5000 + b"c"
    assert found([word, b"bab"], b"x" + word, 16) == [0, 1]
    assert found([word], word[1:], 16) == []
