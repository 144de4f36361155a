// Arrow arrays with untrusted offsets, indices and bitmaps: a load throws BadArray, or its values lie within the buffers.
//
// The buffers themselves have the sizes that the array's length and its largest offset promise: the C data interface
// has no other sizes, and readers of messages have checked them (`validate(full=True)`).
#include "fuzz.hpp"
#include "extract/arrow.hpp"

namespace {

using namespace livectr;

// An array with its buffers, in memory of exactly their sizes.
struct Built {
    ArrowArray array{};
    std::vector<std::unique_ptr<uint8_t[]>> memory;
    const void* buffers[3] = {};
    ArrowArray* children[1] = {};
    std::unique_ptr<Built> child, dictionary;

    template <typename T>
    T* buffer(int number, int64_t count) {
        memory.push_back(std::make_unique<uint8_t[]>(size_t(count) * sizeof(T)));
        buffers[number] = memory.back().get();
        return reinterpret_cast<T*>(memory.back().get());
    }
};

std::unique_ptr<Built> head(fuzz::Input& input, int64_t most) {
    auto made = std::make_unique<Built>();
    made->array.length = input.below(most);
    made->array.offset = input.below(4);
    made->array.buffers = made->buffers;
    const int64_t rows = made->array.length + made->array.offset;
    if (input.below(2)) {
        made->array.null_count = -1;  // unknown
        uint8_t* const bits = made->buffer<uint8_t>(0, (rows + 7) / 8);
        for (int64_t i = 0; i < (rows + 7) / 8; ++i) bits[i] = input.number<uint8_t>();
    }
    return made;
}

// Offsets of any value up to `size`, which the last one has.
void offsets(fuzz::Input& input, Built& made, int64_t size, bool wild) {
    const int64_t rows = made.array.length + made.array.offset;
    int32_t* const at = made.buffer<int32_t>(1, rows + 1);
    for (int64_t i = 0; i < rows; ++i) {
        if (wild) at[i] = int32_t(std::min<int64_t>(input.number<int32_t>(), size));
        else at[i] = int32_t(i == 0 ? 0 : std::min<int64_t>(size, at[i - 1] + input.below(5)));
    }
    at[rows] = int32_t(size);
}

template <typename T>
std::unique_ptr<Built> values(fuzz::Input& input, int64_t most) {
    auto made = head(input, most);
    const int64_t rows = made->array.length + made->array.offset;
    if constexpr (std::is_same_v<T, Str>) {
        const bool wild = input.below(2);
        const int64_t size = input.below(32);
        offsets(input, *made, size, wild);
        made->template buffer<uint8_t>(2, size);
    } else if constexpr (std::is_same_v<T, bool>) {
        made->template buffer<uint8_t>(1, (rows + 7) / 8);
    } else {
        made->template buffer<T>(1, rows);
    }
    return made;
}

template <typename T>
std::unique_ptr<Built> lists(fuzz::Input& input) {
    auto made = head(input, 16);
    const bool wild = input.below(2);
    made->child = values<T>(input, 32);
    offsets(input, *made, made->child->array.length, wild);
    made->children[0] = &made->child->array;
    made->array.children = made->children;
    return made;
}

// Rows of a dictionary by indices of any value.
std::unique_ptr<Built> indexed(fuzz::Input& input, std::unique_ptr<Built> dictionary) {
    auto made = head(input, 16);
    const int64_t rows = made->array.length + made->array.offset;
    const bool wild = input.below(2);
    int32_t* const index = made->buffer<int32_t>(1, rows);
    for (int64_t i = 0; i < rows; ++i) index[i] = wild ? input.number<int32_t>() : int32_t(input.below(16));
    made->dictionary = std::move(dictionary);
    made->array.dictionary = &made->dictionary->array;
    return made;
}

volatile uint64_t sum;

template <typename T>
void touch(const T& value) {
    if constexpr (std::is_same_v<T, Str>) {
        REQUIRE(value.size >= 0);
        for (int32_t i = 0; i < value.size; ++i) sum = sum + value.data[i];
    } else {
        uint64_t word = 0;
        std::memcpy(&word, &value, sizeof value);
        sum = sum + word;
    }
}

template <typename T>
void load_values(fuzz::Input& input) {
    auto made = values<T>(input, 32);
    if (input.below(2)) made = indexed(input, std::move(made));
    HostPool pool;
    Values<T> column{};
    try {
        load(column, made->array, 0, made->array.length, pool);
    } catch (const BadArray&) {
        return;
    }
    for (int64_t i = 0; i < made->array.length; ++i) touch(column.values[i]);
}

template <typename T>
void load_lists(fuzz::Input& input) {
    auto made = lists<T>(input);
    if (input.below(2)) made = indexed(input, std::move(made));
    HostPool pool;
    Lists<T> column{};
    try {
        load(column, made->array, 0, made->array.length, pool);
    } catch (const BadArray&) {
        return;
    }
    for (int64_t i = 0; i < made->array.length; ++i) {
        REQUIRE(column.values[i].size >= 0);
        for (int32_t k = 0; k < column.values[i].size; ++k) touch(column.values[i].data[k]);
    }
}

}  // namespace

FUZZ_TARGET(arrow_arrays) {
    switch (input.below(9)) {
        case 0: return load_values<int32_t>(input);
        case 1: return load_values<double>(input);
        case 2: return load_values<bool>(input);
        case 3:
        case 4: return load_values<Str>(input);
        case 5: return load_lists<int64_t>(input);
        case 6: return load_lists<bool>(input);
        default: return load_lists<Str>(input);
    }
}
