// Layout of a row on the host, known when a table is made: layout.py::RowLayout.description. The loops over a row's
// values are compiled for the usual widths (row/width.hpp) and chosen by function pointers; other widths take
// loops of run-time length. The bits do not depend on that.
#pragma once
#include "row/optimisers.cuh"
#include "row/row_values.cuh"
#include "row/width.hpp"
#ifdef LIVECTR_HOST
#include <memory>
#include <vector>

namespace {

// Floats of a task: on its stack, or in the heap if they are many.
class Scratch {
  public:
    explicit Scratch(int64_t floats) : heap_(floats > FEW ? new float[floats] : nullptr) {}
    float* data() { return heap_ ? heap_.get() : stack_; }

  private:
    static constexpr int64_t FEW = 1024;
    float stack_[FEW];
    std::unique_ptr<float[]> heap_;
};

// Rows that are made or updated together, segment by segment.
struct RowBlock {
    static constexpr int SIZE = 8;
    int size = 0;
    char* stored[SIZE];
    const float* gradients[SIZE];  // summed gradient float[D]
    uint64_t streams[SIZE];        // `initial_stream`; in an update only if values have 2 bytes
    float* rows[SIZE];             // float[STRIDE]: RowLayout sets it
};

// Segment of a row. `at` and `state` are the places of its first value and state float in a row.
struct RowSegment {
    int dim, place, at, state;
    void (*begin)(const RowSegment&, const RowBlock&, const float* h);   // initial values
    void (*init)(const RowSegment&, const RowBlock&, const float* h);    // initial state
    void (*update)(const RowSegment&, const RowBlock&, const float* h);  // optimiser step
};

template <typename N>
void begin_segment(const RowSegment& segment, const RowBlock& block, const float* h) {
    const N n(segment.dim);
    const int at = segment.at, place = segment.place;
    for (int r = 0; r < block.size; ++r) initial_values(n, block.rows[r] + at, place, block.streams[r], h);
}
template <typename Optimiser, typename N>
void init_segment(const RowSegment& segment, const RowBlock& block, const float* h) {
    const N n(segment.dim);
    const int at = segment.at, state = segment.state;
    for (int r = 0; r < block.size; ++r) Optimiser::init(n, block.rows[r] + at, block.rows[r] + state, h + 1);
}
template <typename Optimiser, typename N>
void update_segment(const RowSegment& segment, const RowBlock& block, const float* h) {
    const N n(segment.dim);
    const int at = segment.at, state = segment.state;
    for (int r = 0; r < block.size; ++r) {
        Optimiser::update(n, block.rows[r] + at, block.rows[r] + state, block.gradients[r] + at, h + 1);
    }
}

// Rows with values of 2 bytes, which are copied to float[STRIDE] and back.
struct ShortValues {
    void (*read)(int dim, const char* stored, float* row);
    void (*write)(int dim, char* stored, const float* row);
    void (*round)(int dim, float* row);
    void (*write_updated)(int dim, char* stored, const float* row, float* updates, uint64_t stream);

    template <typename Value, typename N>
    static ShortValues of() {
        return {
            [](int dim, const char* stored, float* row) {
                read_values(N(dim), reinterpret_cast<const Value*>(stored), row);
            },
            [](int dim, char* stored, const float* row) {
                write_values(N(dim), reinterpret_cast<Value*>(stored), row);
            },
            [](int dim, float* row) { round_initial<Value>(N(dim), row); },
            [](int dim, char* stored, const float* row, float* updates, uint64_t stream) {
                ::write_updated(N(dim), reinterpret_cast<Value*>(stored), row, *updates, stream);
            },
        };
    }
};

class RowLayout {
  public:
    static constexpr int HYPERS = 8;  // of a segment; layout.py pads to it
    enum Values { FP32, FP16, BF16 };

    // description: Values, then optimiser, dim and place of each of the segments.
    RowLayout(const int64_t* description, int64_t segments) : values_(static_cast<Values>(description[0])) {
        for (int64_t i = 0; i < segments; ++i) dim_ += static_cast<int>(description[2 + 3 * i]);
        stride_ = dim_;
        int at = 0;
        for (int64_t i = 0; i < segments; ++i) {
            const int64_t* const given = description + 1 + 3 * i;
            add(given[0], {static_cast<int>(given[1]), static_cast<int>(given[2]), at, stride_, {}, {}, {}});
            at += segments_.back().dim;
        }
        if (values_ != FP32) ++stride_;  // number of updates
        with_row_width(dim_, [&](auto n) {
            using N = decltype(n);
            if (values_ == FP16) short_ = ShortValues::of<Half, N>();
            if (values_ == BF16) short_ = ShortValues::of<BFloat, N>();
        });
        is_weight_and_vector_ = in_place() && segments == 2 && segments_[0].dim == 1 && dim_ > 1 &&
                                description[1] == ADAGRAD && description[4] == ADAGRAD;
        value_bytes_ = values_ == FP32 ? ::value_bytes<float>(dim_) : ::value_bytes<Half>(dim_);
    }

    int dim() const { return dim_; }        // D
    int stride() const { return stride_; }  // STRIDE
    int64_t value_bytes() const { return value_bytes_; }
    int64_t state_bytes() const { return int64_t{4} * (stride_ - dim_); }
    int64_t stored_bytes() const { return value_bytes_ + state_bytes(); }
    bool in_place() const { return values_ == FP32; }  // a stored row is float[STRIDE]

    // A weight and a vector of floats, both with AdaGrad: the layout of most models' tables.
    bool is_weight_and_vector() const { return is_weight_and_vector_; }

    // Initial values of a new key.
    void values(float* row, uint64_t stream, const float* h) const {
        RowBlock block;
        block.size = 1;
        block.streams[0] = stream;
        block.rows[0] = row;
        values(block, h);
    }

    // Values of a stored row: in place, or converted into `buffer[D]`.
    const float* read(const char* stored, float* buffer) const {
        if (in_place()) return reinterpret_cast<const float*>(stored);
        short_.read(dim_, stored, buffer);
        return buffer;
    }

    // Values, and with `state` the state, of a stored row into row[STRIDE].
    void copy(const char* stored, float* row, bool state) const {
        const float* const values = read(stored, row);
        if (values != row) memcpy(row, values, sizeof(float) * dim_);
        if (state) memcpy(row + dim_, stored + value_bytes_, state_bytes());
    }

    void write(char* stored, const float* row) const {
        if (!in_place()) {
            short_.write(dim_, stored, row);
            memcpy(stored + value_bytes_, row + dim_, state_bytes());
        } else {
            memcpy(stored, row, stored_bytes());
        }
    }

    // Writes some of a row's values, float[dim] from `at` on, rounded to nearest.
    void write_some(char* stored, int64_t at, int64_t dim, const float* some) const {
        switch (values_) {
            case FP32: return write_values(static_cast<int>(dim), reinterpret_cast<float*>(stored) + at, some);
            case FP16: return write_values(static_cast<int>(dim), reinterpret_cast<Half*>(stored) + at, some);
            case BF16: return write_values(static_cast<int>(dim), reinterpret_cast<BFloat*>(stored) + at, some);
        }
    }

    // Number of floats of the scratch of `begin` and `update`.
    int64_t scratch() const { return in_place() ? 0 : RowBlock::SIZE * stride_; }

    // Writes the initial rows of new keys.
    void begin(RowBlock& block, const float* h, float* scratch) const {
        open(block, scratch);
        values(block, h);
        for (size_t i = 0; i < segments_.size(); ++i) segments_[i].init(segments_[i], block, h + i * HYPERS);
        if (in_place()) return;
        for (int r = 0; r < block.size; ++r) {
            block.rows[r][stride_ - 1] = 0.0f;
            write(block.stored[r], block.rows[r]);
        }
    }

    // Optimiser step of rows.
    void update(RowBlock& block, const float* h, float* scratch) const {
        open(block, scratch);
        if (!in_place()) {
            for (int r = 0; r < block.size; ++r) copy(block.stored[r], block.rows[r], true);
        }
        for (size_t i = 0; i < segments_.size(); ++i) segments_[i].update(segments_[i], block, h + i * HYPERS);
        if (in_place()) return;
        for (int r = 0; r < block.size; ++r) {
            float* const row = block.rows[r];
            short_.write_updated(dim_, block.stored[r], row, row + stride_ - 1, block.streams[r]);
            memcpy(block.stored[r] + value_bytes_, row + dim_, state_bytes());
        }
    }

  private:
    static constexpr int64_t ADAGRAD = 1;  // in with_optimiser
    bool is_weight_and_vector_ = false;
    Values values_;
    int dim_ = 0, stride_ = 0;
    int64_t value_bytes_ = 0;
    std::vector<RowSegment> segments_;
    ShortValues short_{};

    void open(RowBlock& block, float* scratch) const {
        for (int r = 0; r < block.size; ++r) {
            block.rows[r] = in_place() ? reinterpret_cast<float*>(block.stored[r]) : scratch + r * stride_;
        }
    }

    void values(const RowBlock& block, const float* h) const {
        for (size_t i = 0; i < segments_.size(); ++i) segments_[i].begin(segments_[i], block, h + i * HYPERS);
        if (in_place()) return;
        for (int r = 0; r < block.size; ++r) short_.round(dim_, block.rows[r]);
    }

    // Adds a segment; stride_ is the place of its state, and moves behind it.
    void add(int64_t optimiser, RowSegment segment) {
        with_optimiser(optimiser, [&](auto kind) {
            using Optimiser = decltype(kind);
            with_segment_width(segment.dim, [&](auto n) {
                using N = decltype(n);
                segment.begin = begin_segment<N>;
                segment.init = init_segment<Optimiser, N>;
                segment.update = update_segment<Optimiser, N>;
            });
            stride_ += Optimiser::state(segment.dim);
        });
        segments_.push_back(segment);
    }

    // Numbers: layout.py::Optimiser.number.
    template <typename Call>
    static void with_optimiser(int64_t number, Call&& call) {
        switch (number) {
            case 0: return call(SGD());
            case ADAGRAD: return call(AdaGrad());
            case 2: return call(RowAdaGrad());
            case 3: return call(Adam());
            case 4: return call(FTRL());
            case 16: return call(Adaptive<SGD>());
            case 17: return call(Adaptive<AdaGrad>());
            case 18: return call(Adaptive<RowAdaGrad>());
            case 19: return call(Adaptive<Adam>());
        }
    }
};

}  // namespace

#endif
