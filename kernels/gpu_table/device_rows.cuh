// Rows in a GPU's memory: slabs that never move, so that growing copies nothing. The first slabs double, from
// 2^SLAB_LOW rows; from 2^SLAB_HIGH on all have that size. A slab holds its stored rows (row/row_values.cuh), each at a
// multiple of 32 bytes (a sector), then their headers. kernels/gpu_table/device_store.py gives SLAB_LOW, SLAB_HIGH and ROW_PITCH.
#pragma once
#include "row/row_values.cuh"

constexpr uint32_t FREE_ROW = 0xFFFFFFFFu;
constexpr int64_t VALUE_BYTES = value_bytes<Layout::Value>(Layout::D);
constexpr int64_t STATE_BYTES = 4 * (Layout::STRIDE - Layout::D);

struct DeviceHeader {
    int64_t key;
    uint32_t table;       // FREE_ROW: no key has this row
    uint32_t generation;  // of the last change; 0: none since it was fetched
    uint32_t used;        // the last step that used it
    uint32_t spare;
};

struct RowPlace {
    char* slab;
    uint32_t place, rows;
};

static __device__ __forceinline__ RowPlace row_place(char* const* slabs, uint32_t row) {
    if (row >> SLAB_HIGH) {
        constexpr uint32_t SIZE = 1u << SLAB_HIGH;
        return {slabs[SLAB_HIGH - SLAB_LOW + (row >> SLAB_HIGH)], row & (SIZE - 1), SIZE};
    }
    if ((row >> SLAB_LOW) == 0) return {slabs[0], row, 1u << SLAB_LOW};
    const int32_t top = highest_bit(row);
    return {slabs[top - SLAB_LOW + 1], row ^ (1u << top), 1u << top};
}

static __device__ __forceinline__ char* stored_row(char* const* slabs, uint32_t row) {
    const RowPlace at = row_place(slabs, row);
    return at.slab + int64_t(at.place) * ROW_PITCH;
}

static __device__ __forceinline__ Layout::Value* device_values(char* const* slabs, uint32_t row) {
    return reinterpret_cast<Layout::Value*>(stored_row(slabs, row));
}

static __device__ __forceinline__ char* device_state(char* const* slabs, uint32_t row) {
    return stored_row(slabs, row) + VALUE_BYTES;
}

static __device__ __forceinline__ DeviceHeader* device_header(char* const* slabs, uint32_t row) {
    const RowPlace at = row_place(slabs, row);
    return reinterpret_cast<DeviceHeader*>(at.slab + int64_t(at.rows) * ROW_PITCH) + at.place;
}

// From float[STRIDE].
static __device__ __forceinline__ void write_device_row(char* const* slabs, uint32_t row, const float* floats) {
    write_values(Layout::D, device_values(slabs, row), floats);
    memcpy(device_state(slabs, row), floats + Layout::D, STATE_BYTES);
}

// Optimiser step of a row with the summed gradient float[D]; `stream` is its `initial_stream`. Overloaded for values of
// 4 and of 2 bytes.
static __device__ __forceinline__ void update_row(float* row, char*, const float* gradient, uint64_t, const float* h) {
    Layout::update(row, gradient, h);
}
template <typename Value>
static __device__ __forceinline__ void update_row(Value* values, char* state, const float* gradient, uint64_t stream,
                                                  const float* h) {
    float floats[Layout::STRIDE];
    read_values(Layout::D, values, floats);
    memcpy(floats + Layout::D, state, STATE_BYTES);
    Layout::update(floats, gradient, h);
    write_updated(Layout::D, values, floats, floats[Layout::STRIDE - 1], stream);
    memcpy(state, floats + Layout::D, STATE_BYTES);
}

// D values of a row in parts, each the size of a load or store: D = WIDTH * COUNT.
struct Lanes {
    static constexpr int WIDTH = Layout::D % 4 == 0 ? 4 : 1, COUNT = Layout::D / WIDTH;
    struct alignas(4 * WIDTH) Part {
        float values[WIDTH];
    };
    struct alignas(sizeof(Layout::Value) * WIDTH) Stored {
        Layout::Value values[WIDTH];
    };

    static __device__ __forceinline__ float widened(float value) { return value; }
    template <typename Value>
    static __device__ __forceinline__ float widened(Value value) {
        return value.widen();
    }

    static __device__ __forceinline__ Part read(char* const* slabs, uint32_t row, int64_t part) {
        const Stored stored = reinterpret_cast<const Stored*>(stored_row(slabs, row))[part];
        Part values;
        for (int lane = 0; lane < WIDTH; ++lane) values.values[lane] = widened(stored.values[lane]);
        return values;
    }
    // to[D]
    static __device__ __forceinline__ void write(float* to, int64_t part, const Part& values) {
        reinterpret_cast<Part*>(to)[part] = values;
    }
};
