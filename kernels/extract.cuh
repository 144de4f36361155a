// The host side of a generated feature plan: reads Arrow columns in place, gives each layer its memory, sums up
// sizes between measuring and writing, and packs the results. Host only; the plan itself (ingest/codegen.py) is
// CUDA-clean.
#pragma once
#include "columns.cuh"
#include "threads.cuh"

#include <memory>
#include <vector>

// Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), ABI-stable.
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

namespace livectr {

constexpr int64_t ROWS_PER_TASK = 1024;
enum Failure : int64_t { TOO_LONG = -1, OUT_OF_MEMORY = -2 };

// The host's counterpart of the in-kernel pool (FeatureBox §5): bumps a pointer, aligned to 128 bytes, and takes
// everything back at once. It grows by blocks and joins them into one when it is reset.
class Arena {
  public:
    template <typename T>
    T* take(int64_t count) {
        const int64_t bytes = (count * int64_t(sizeof(T)) + 127) / 128 * 128;
        if (blocks_.empty() || used_ + bytes > blocks_.back().size) grow(bytes);
        void* const address = blocks_.back().memory.get() + used_;
        used_ += bytes;
        return static_cast<T*>(address);
    }

    void reset() {
        if (blocks_.size() > 1) {
            int64_t total = 0;
            for (const Block& block : blocks_) total += block.size;
            blocks_.clear();
            grow(total);
        }
        used_ = 0;
    }

  private:
    struct Free {
        void operator()(uint8_t* memory) const { ::operator delete[](memory, std::align_val_t(128)); }
    };
    struct Block {
        std::unique_ptr<uint8_t[], Free> memory;
        int64_t size;
    };
    std::vector<Block> blocks_;
    int64_t used_ = 0;

    void grow(int64_t bytes) {
        const int64_t size = std::max<int64_t>({bytes, 1 << 16, blocks_.empty() ? 0 : 2 * blocks_.back().size});
        blocks_.push_back({std::unique_ptr<uint8_t[], Free>(static_cast<uint8_t*>(
                               ::operator new[](size, std::align_val_t(128)))), size});
        used_ = 0;
    }
};

// Root columns: views of Arrow buffers.

template <typename Column>
void set_validity(Column& column, const ArrowArray& array, int64_t skip) {
    column.valid = array.null_count == 0 ? nullptr : static_cast<const uint8_t*>(array.buffers[0]);
    column.shift = array.offset + skip;
}

template <typename T>
void load(Fixed<T>& column, const ArrowArray& array, int64_t skip, T fill = T()) {
    set_validity(column, array, skip);
    column.values = static_cast<T*>(const_cast<void*>(array.buffers[1]));
    column.fill = fill;
}

inline void load(Bits& column, const ArrowArray& array, int64_t skip, bool fill = false) {
    set_validity(column, array, skip);
    column.values = static_cast<const uint8_t*>(array.buffers[1]);
    column.fill = fill;
}

inline void load(Strings& column, const ArrowArray& array, int64_t skip, Str fill = Str{nullptr, 0}) {
    set_validity(column, array, skip);
    column.offsets = static_cast<int32_t*>(const_cast<void*>(array.buffers[1]));
    column.bytes = static_cast<uint8_t*>(const_cast<void*>(array.buffers[2]));
    column.fill = fill;
}

template <typename Items>
void load(List<Items>& column, const ArrowArray& array, int64_t skip) {
    set_validity(column, array, skip);
    column.offsets = static_cast<int32_t*>(const_cast<void*>(array.buffers[1]));
    load(column.items, *array.children[0], 0);
    column.row_bytes = nullptr;
}

// Results. `reserve` before a layer measures, `allocate` before it writes.

inline int32_t* starts(Arena& arena, int64_t count) {
    int32_t* const offsets = arena.take<int32_t>(count + 1);
    offsets[0] = 0;
    return offsets;
}

// Sizes at offsets[1 …] become ends. Throws when they pass int32.
inline int32_t sum_up(int32_t* offsets, int64_t count) {
    int64_t total = 0;
    for (int64_t i = 1; i <= count; ++i) {
        total += offsets[i];
        if (total > INT32_MAX) throw TOO_LONG;
        offsets[i] = int32_t(total);
    }
    return int32_t(total);
}

template <typename T>
void reserve(Fixed<T>& column, Arena& arena, int64_t rows) { column = Fixed<T>{arena.take<T>(rows), nullptr, 0, T()}; }
template <typename T>
void allocate(Fixed<T>&, Arena&, int64_t) {}

inline void reserve(Strings& column, Arena& arena, int64_t rows) {
    column = Strings{starts(arena, rows), nullptr, nullptr, 0, Str{nullptr, 0}};
}
inline void allocate(Strings& column, Arena& arena, int64_t rows) {
    column.bytes = arena.take<uint8_t>(sum_up(column.offsets, rows));
}

template <typename T>
void reserve(List<Fixed<T>>& column, Arena& arena, int64_t rows) {
    column = List<Fixed<T>>{starts(arena, rows), nullptr, 0, {}, nullptr};
}
template <typename T>
void allocate(List<Fixed<T>>& column, Arena& arena, int64_t rows) {
    reserve(column.items, arena, sum_up(column.offsets, rows));
}

inline void reserve(List<Strings>& column, Arena& arena, int64_t rows) {
    column = List<Strings>{starts(arena, rows), nullptr, 0, {}, starts(arena, rows)};
}
inline void allocate(List<Strings>& column, Arena& arena, int64_t rows) {
    reserve(column.items, arena, sum_up(column.offsets, rows));
    column.items.bytes = arena.take<uint8_t>(sum_up(column.row_bytes, rows));
}

// Packing: int32 offsets and int64 keys of all fields, field-major; float32 dense numbers, row-major.

template <typename Column>
int64_t key_count(const Column&, int64_t rows) { return rows; }

template <typename Items>
int64_t key_count(const List<Items>& column, int64_t rows) {
    // Between the first and the last offset there are no more items than these, unless rows are null.
    if (column.valid == nullptr) return column.offsets[column.shift + rows] - column.offsets[column.shift];
    int64_t total = 0;
    for (int64_t row = 0; row < rows; ++row) total += column.row(row).size();
    return total;
}

template <typename Column>
void pack(const Column& column, int64_t rows, int64_t base, int32_t* offsets, int64_t* keys) {
    for (int64_t row = 0; row < rows; ++row) {
        offsets[row + 1] = int32_t(base + row + 1);
        keys[base + row] = int64_t(column.at(row));
    }
}

template <typename Items>
void pack(const List<Items>& column, int64_t rows, int64_t base, int32_t* offsets, int64_t* keys) {
    if (column.valid == nullptr && column.items.valid == nullptr) {
        const int64_t first = column.offsets[column.shift], count = column.offsets[column.shift + rows] - first;
        for (int64_t row = 1; row <= rows; ++row) {
            offsets[row] = int32_t(base + column.offsets[column.shift + row] - first);
        }
        for (int64_t i = 0; i < count; ++i) keys[base + i] = int64_t(column.items.at(first + i));
        return;
    }
    for (int64_t row = 0; row < rows; ++row) {
        const auto items = column.row(row);
        for (int32_t i = 0; i < items.size(); ++i) keys[base++] = int64_t(items.at(i));
        offsets[row + 1] = int32_t(base);
    }
}

// A number that is not finite would poison every weight it meets: it becomes 0 and is counted.
template <typename Column>
int64_t pack_dense(const Column& column, int64_t rows, float* out, int64_t stride) {
    int64_t replaced = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const float value = float(column.at(row));
        const bool finite = value - value == 0;
        out[row * stride] = finite ? value : 0;
        replaced += !finite;
    }
    return replaced;
}

}  // namespace livectr
