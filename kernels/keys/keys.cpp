#include "keys/numbers.hpp"
#include "runtime/threads.hpp"

extern "C" {

void combine_keys(int64_t* keys, const int64_t* others, int64_t n) {
    for (int64_t i = 0; i < n; ++i) keys[i] = static_cast<int64_t>(hash_combine(keys[i], others[i]));
}

void hash_texts(const uint8_t* bytes, const int32_t* offsets, int64_t n, int64_t* keys) {
    livectr::parallel_chunks(n, 8192, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            keys[i] = static_cast<int64_t>(hash_bytes(bytes + offsets[i], offsets[i + 1] - offsets[i]));
    });
}

void* numbers_new() { return new Numbers; }
void numbers_free(void* numbers) { delete static_cast<Numbers*>(numbers); }

void numbers_find(void* numbers, const int64_t* keys, int64_t n, uint32_t* out) {
    find_rows(static_cast<Numbers*>(numbers)->index.view(), keys, n, out);
}

// Rows of keys less `first`, and a bit for each key that has one; returns how many have none.
// row_of: row of each number, negative: none.
int64_t numbers_rows(const void* numbers, const int64_t* keys, int64_t n, const int64_t* row_of, int64_t first,
                     int32_t* out, uint8_t* valid) {
    constexpr int64_t PART = 256;
    uint32_t found[PART];
    int64_t absent = 0;
    for (int64_t begin = 0; begin < n; begin += PART) {
        const int64_t size = std::min(PART, n - begin);
        find_rows(static_cast<const Numbers*>(numbers)->index.view(), keys + begin, size, found);
        for (int64_t i = 0; i < size; i += 8) {
            uint8_t bits = 0;
            for (int64_t k = i; k < std::min(i + 8, size); ++k) {
                const int64_t row = found[k] != NO_ROW ? row_of[found[k]] : -1;
                out[begin + k] = row < 0 ? 0 : int32_t(row - first);
                bits |= uint8_t((row >= 0) << (k - i));
                absent += row < 0;
            }
            valid[(begin + i) / 8] = bits;
        }
    }
    return absent;
}

// Returns how many keys have a number now.
uint32_t numbers_assign(void* handle, const int64_t* keys, int64_t n, uint32_t* out) {
    auto& numbers = *static_cast<Numbers*>(handle);
    for (int64_t i = 0; i < n; ++i) {
        out[i] = numbers.index.find_or_insert(keys[i], numbers.count);
        numbers.count += out[i] == numbers.count;
    }
    return numbers.count;
}
}
