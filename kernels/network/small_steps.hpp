// Steps of small batches of a rank that holds all rows, one after the other and without a return to the caller (host
// only):
//
//     rows       keys → values f32[b, F, row]; missing keys are inserted                       table/fields.hpp
//     logits     values → partial sums → logits of every role                                  network/small_batch.hpp
//     orders     first and second order, example by example; its logits are the scores         online/examples.hpp
//     gradients  scores and labels → gradients of values and networks, if they are finite
//     learn      orders and rows, then networks
//
// Targets and weights that depend on the logits are the caller's, between `score` and `teach`.
//
// The bits are those of a step for each batch (trainer/des/step.py, `_learn_small`).
#pragma once
#include "network/small_batch.hpp"
#include "online/examples.hpp"
#include "table/fields.hpp"
#ifdef LIVECTR_HOST
#include <array>
#include <cfloat>

namespace {

using small_batch::Network;

// Segment that is learned example by example: places of its values and of its state in a row; dim 0: none.
struct OnlineSegment {
    int64_t at, dim, state, floats;

    int64_t width() const { return dim + floats; }
};

struct RoleShape {
    Network* network;
    int64_t start;  // first of its values in a row
    OnlineSegment first, second;
};

// Rates of a role: of the network's Adam, the AdaGrads of bias, scales and dense features, and the hyper-parameters of the segments.
struct RoleRates {
    double network;
    float bias, scale, online_scale, number;
    float first[RowLayout::HYPERS], second[RowLayout::HYPERS];
};

// n examples in P batches: bounds[P + 1]. Keys as of Features (ingest/plan/features.py); dense[n, D].
struct Block {
    int64_t parts;
    const int64_t* bounds;
    const int32_t* offsets;
    const int64_t* keys;
    const float *dense, *label;
};

// What the b examples of a batch teach each role in place of their labels: target, weight[roles, b], shift[roles, b] of
// their logits in the loss, and inertia[roles], which is added to the curvature of the bias; settles: as trainer/des/dense.py has it.
struct Lessons {
    const float *target, *weight, *shift;
    const double* inertia;
    bool settles;
};

class SmallSteps {
  public:
    // by_table[F]: the fields, sorted by table. most: examples of the largest batch; online: of the largest whose orders
    // are learned example by example.
    SmallSteps(Fields& fields, const int32_t* by_table, std::vector<RoleShape> roles, int64_t dense, int64_t most,
               int64_t online)
        : fields_(fields),
          by_table_(by_table, by_table + fields.fields()),
          roles_(std::move(roles)),
          dense_(dense),
          online_(online),
          one_block_(fields.fields()),
          label_(most),
          offsets_(fields.fields() * most + 1),
          by_table_offsets_(fields.fields() * most + 1),
          values_(fields.fields() * most * fields.layout().dim()),
          gradient_(values_.size()),
          before_(roles_.size() * most),
          moved_(before_.size()),
          states_(2 * roles_.size()),
          scales_(roles_.size()),
          biases_(roles_.size()) {
        int64_t widest = 0;
        for (const RoleShape& role : roles_) widest = std::max(widest, role.network->partial());
        sums_.resize(most * widest);
    }

    // Learns the batches from number `part` on, up to one whose gradients are not finite: that is scored only. steps:
    // learned before, then learned here. logits[roles, n]: the scores. Returns the number of the next batch.
    int64_t learn(const Block& block, int64_t part, const RoleRates* rates, int64_t* steps, float* logits) {
        const int64_t first = *steps;
        while (part < block.parts) {
            const int64_t b = block.bounds[part + 1] - block.bounds[part];
            const int64_t number = part++;
            if (!b) continue;
            fetch_ahead(block, part);
            score(block, number);
            if (!teach(block, number, nullptr, rates, *steps, logits)) break;
            ++*steps;
        }
        *steps -= first;
        return part;
    }

    // Reads a batch with examples → its logits[roles, b] from before it is learned.
    const float* score(const Block& block, int64_t part) {
        const int64_t begin = block.bounds[part], b = block.bounds[part + 1] - begin, dim = fields_.layout().dim();
        take(block, begin, b);
        fields_.forward(Shape(fields_.fields(), one_block_.data(), 1, &b), offsets_.data(), keys_.data(),
                        values_.data());
        for (size_t r = 0; r < roles_.size(); ++r) {
            Network& network = *roles_[r].network;
            network.read(b, values_.data() + roles_[r].start, dim, block.dense + begin * dense_);
            network.add_partial(sums_.data(), network.partial());
            network.finish(sums_.data(), network.partial(), before_.data() + r * b);
        }
        return before_.data();
    }

    // Learns the batch that `score` has read; lessons: null, the labels teach. Arguments as of `learn`. Returns false if
    // its gradients are not finite: it is scored only.
    bool teach(const Block& block, int64_t part, const Lessons* lessons, const RoleRates* rates, int64_t steps,
               float* logits) {
        const int64_t begin = block.bounds[part], b = block.bounds[part + 1] - begin, n = block.bounds[block.parts];
        const int64_t roles = roles_.size(), dim = fields_.layout().dim();
        const auto labels_of = [&](int64_t r) {
            return lessons ? Labels{lessons->target + r * b, lessons->weight + r * b} : Labels{label_.data(), nullptr};
        };
        const auto shift_of = [&](int64_t r) { return lessons ? lessons->shift + r * b : nullptr; };
        const bool online = b <= online_, settles = lessons && lessons->settles;
        if (online) number();
        double bound = 0;
        for (int64_t r = 0; r < roles; ++r) {
            const RoleShape& role = roles_[r];
            float* const scores = logits + r * n + begin;
            const bool first = online && role.first.dim, second = first && role.second.dim;
            const Labels labels = labels_of(r);
            const float* const in_loss = lessons ? moved_.data() + r * b : scores;
            if (first) {
                pass(r, b, rates[r], labels, shift_of(r), settles, scores);
            } else {
                std::copy_n(before_.data() + r * b, b, scores);
            }
            for (int64_t i = 0; lessons && i < b; ++i) moved_[r * b + i] = scores[i] + shift_of(r)[i];
            bound += role.network->backward({in_loss, 0.0f, labels.label, labels.weight}, first, second,
                                            gradient_.data() + role.start, dim);
        }
        if (!(bound <= static_cast<double>(FLT_MAX))) return false;
        for (int64_t r = 0; online && r < roles; ++r) store(r, settles);
        fields_.backward(gradient_.data());
        const double root = sqrt(1 - pow(0.999, static_cast<double>(steps + 1)));
        const double rise = 1 - pow(0.9, static_cast<double>(steps + 1));
        const double small = std::min(1.0, static_cast<double>(b) / STEADY);
        for (int64_t r = 0; r < roles; ++r) {
            const RoleRates& rate = rates[r];
            const small_batch::Adam adam{static_cast<float>(rate.network * small * root / rise),
                                         static_cast<float>(1e-8 * root),
                                         static_cast<float>(1.0 / static_cast<double>(b))};
            const bool learned = online && roles_[r].first.dim;
            const float* const in_loss = lessons ? moved_.data() + r * b : logits + r * n + begin;
            const double curvature = small_batch::curvature_of(b, in_loss, 0.0f, labels_of(r).weight) +
                                     (lessons ? lessons->inertia[r] : 0.0);
            const float moved =
                roles_[r].network->update(adam, {learned && !settles ? 0.0f : rate.bias, static_cast<float>(curvature),
                                                 learned ? 0.0f : rate.scale, rate.number, settles});
            if (moved != 0) *roles_[r].network->bias().value -= moved;
        }
        return true;
    }

  private:
    Fields& fields_;
    std::vector<int32_t> by_table_;
    std::vector<RoleShape> roles_;
    int64_t dense_, online_;
    std::vector<int32_t> one_block_;  // block of each field: 0
    std::vector<float> label_;
    std::vector<int32_t> offsets_, by_table_offsets_;
    std::vector<int64_t> keys_;
    std::vector<uint32_t> slots_;
    std::vector<float> values_, gradient_, before_, moved_, sums_;  // moved: scores in the loss
    std::vector<std::vector<float>> states_, scales_;  // of each role: states of both segments, scales f32[F, 2]
    std::vector<std::array<float, 2>> biases_;         // b and its sum of squares
    std::vector<char*> stored_;                        // of the unique keys of all tables
    std::vector<int64_t> first_of_table_;
    ExamplesPass pass_;

    static constexpr double STEADY = 64;  // DenseAdam.STEADY

    // Asks for the index's slots of a step's keys while the step before is learned: the few keys that each table has
    // would wait for the memory one after the other. Inlined: GCC takes a function of prefetches for one without effect,
    // and leaves its calls out.
    __forceinline__ void fetch_ahead(const Block& block, int64_t part) const {
        if (part == block.parts) return;
        const int64_t n = block.bounds[block.parts];
        for (int64_t f = 0; f < fields_.fields(); ++f) {
            const int32_t* const ends = block.offsets + f * n;
            const int32_t first = ends[block.bounds[part]];
            fields_.fetch_ahead(f, block.keys + first, ends[block.bounds[part + 1]] - first);
        }
    }

    // The batch's part of the block.
    void take(const Block& block, int64_t begin, int64_t b) {
        const int64_t fields = fields_.fields(), n = block.bounds[block.parts];
        for (int64_t i = 0; i < b; ++i) label_[i] = std::min(block.label[begin + i], 1.0f);
        keys_.clear();
        for (int64_t f = 0; f < fields; ++f) {
            const int32_t* const ends = block.offsets + f * n + begin;
            const int32_t moved = static_cast<int32_t>(keys_.size()) - ends[0];
            for (int64_t i = 0; i < b; ++i) offsets_[f * b + i] = ends[i] + moved;
            keys_.insert(keys_.end(), block.keys + ends[0], block.keys + ends[b]);
        }
        offsets_[fields * b] = static_cast<int32_t>(keys_.size());
        examples_ = b;
    }

    int64_t examples_ = 0;

    // Numbers the unique keys of all tables, and the occurrences by table.
    void number() {
        const int64_t fields = fields_.fields(), b = examples_;
        first_of_table_.clear();
        stored_.clear();
        for (int64_t t = 0; t < fields_.tables(); ++t) {
            first_of_table_.push_back(stored_.size());
            for (int64_t u = 0; u < fields_.unique_keys(t); ++u) stored_.push_back(fields_.stored(t, u));
        }
        slots_.clear();
        for (int64_t place = 0; place < fields; ++place) {
            const int64_t f = by_table_[place], first = first_of_table_[fields_.table_of(f)];
            for (int64_t i = 0; i < b; ++i) {
                by_table_offsets_[place * b + i] = static_cast<int32_t>(slots_.size());
                for (int32_t at = offsets_[f * b + i]; at < offsets_[f * b + i + 1]; ++at)
                    slots_.push_back(static_cast<uint32_t>(first + fields_.unique_of(at)));
            }
        }
        by_table_offsets_[fields * b] = static_cast<int32_t>(slots_.size());
    }

    // Orders of a role, example by example, whose logits are moved by shift[b] (null: not at all); their results stay
    // apart until `store`.
    void pass(int64_t r, int64_t b, const RoleRates& rates, const Labels& labels, const float* shift, bool settles,
              float* scores) {
        const RoleShape& role = roles_[r];
        const int64_t fields = fields_.fields();
        std::vector<float>&first = states_[2 * r], &second = states_[2 * r + 1], &scale = scales_[r];
        read(role.first, first);
        read(role.second, second);
        const small_batch::Parameter own = role.network->scale();
        scale.resize(2 * fields);
        for (int64_t place = 0; place < fields; ++place) {
            scale[2 * place] = own.value[by_table_[place]];
            scale[2 * place + 1] = own.square[by_table_[place]];
        }
        const Rows rows{first.data(), rates.first, role.second.dim, second.data(), rates.second};
        const Occurrences of{b, nullptr, fields, by_table_offsets_.data(), slots_.data()};
        float* const before = before_.data() + r * b;
        for (int64_t i = 0; shift && i < b; ++i) before[i] += shift[i];
        const small_batch::Parameter bias = role.network->bias();
        biases_[r] = {*bias.value, *bias.square};
        pass_.learn(of, {scale.data(), rates.online_scale, settles}, {settles ? nullptr : biases_[r].data()},
                    stored_.size(), rows, labels, before, scores);
        for (int64_t i = 0; shift && i < b; ++i) scores[i] -= shift[i];
    }

    // Values and state of a segment of the unique keys; NaN where there is no row.
    void read(const OnlineSegment& segment, std::vector<float>& state) {
        const RowLayout& layout = fields_.layout();
        state.resize(stored_.size() * segment.width());
        row_.resize(layout.dim());
        float* to = state.data();
        for (const char* const stored : stored_) {
            if (!segment.dim) return;
            if (stored) {
                memcpy(to, layout.read(stored, row_.data()) + segment.at, 4 * segment.dim);
                memcpy(to + segment.dim, stored + layout.value_bytes() + 4 * segment.state, 4 * segment.floats);
            } else {
                std::fill_n(to, segment.width(), NAN);
            }
            to += segment.width();
        }
    }

    std::vector<float> row_;

    // Writes what a pass has learned; `Fields::backward` follows.
    void store(int64_t r, bool settles) {
        const RoleShape& role = roles_[r];
        if (!role.first.dim) return;
        write(role.first, states_[2 * r]);
        write(role.second, states_[2 * r + 1]);
        const small_batch::Parameter own = role.network->scale();
        for (int64_t place = 0; place < fields_.fields(); ++place) {
            own.value[by_table_[place]] = scales_[r][2 * place];
            own.square[by_table_[place]] = scales_[r][2 * place + 1];
        }
        if (settles) return;
        const small_batch::Parameter bias = role.network->bias();
        *bias.value = biases_[r][0], *bias.square = biases_[r][1];
    }

    void write(const OnlineSegment& segment, const std::vector<float>& state) const {
        const RowLayout& layout = fields_.layout();
        const float* from = state.data();
        for (char* const stored : stored_) {
            if (!segment.dim) return;
            if (stored) {
                layout.write_some(stored, segment.at, segment.dim, from);
                memcpy(stored + layout.value_bytes() + 4 * segment.state, from + segment.dim, 4 * segment.floats);
            }
            from += segment.width();
        }
    }
};

}  // namespace

extern "C" {

// roles[n, 10]: network, start, then at, dim, state and floats of both segments. Returns null without memory.
void* small_steps_new(Fields* fields, const int32_t* by_table, const int64_t* roles, int64_t n, int64_t dense,
                      int64_t most, int64_t online) {
    try {
        std::vector<RoleShape> shapes;
        for (const int64_t* at = roles; at < roles + 10 * n; at += 10) {
            shapes.push_back(
                {reinterpret_cast<Network*>(at[0]), at[1], {at[2], at[3], at[4], at[5]}, {at[6], at[7], at[8], at[9]}});
        }
        return new SmallSteps(*fields, by_table, std::move(shapes), dense, most, online);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void small_steps_delete(void* steps) { delete static_cast<SmallSteps*>(steps); }

// See Block, RoleRates and SmallSteps::learn.
int64_t small_steps_learn(void* steps, const Block* block, int64_t part, const void* rates, int64_t* count,
                          float* logits) {
    return guarded([&] {
        return static_cast<SmallSteps*>(steps)->learn(*block, part, static_cast<const RoleRates*>(rates), count,
                                                      logits);
    });
}

// See SmallSteps::score; before[roles, b].
int64_t small_steps_score(void* steps, const Block* block, int64_t part, int64_t roles, float* before) {
    return guarded([&] {
        const float* const found = static_cast<SmallSteps*>(steps)->score(*block, part);
        std::copy_n(found, roles * (block->bounds[part + 1] - block->bounds[part]), before);
        return 0;
    });
}

// See SmallSteps::teach; 1: the batch was learned.
int64_t small_steps_teach(void* steps, const Block* block, int64_t part, const Lessons* lessons, const void* rates,
                          int64_t count, float* logits) {
    return guarded([&]() -> int64_t {
        return static_cast<SmallSteps*>(steps)->teach(*block, part, lessons, static_cast<const RoleRates*>(rates),
                                                      count, logits);
    });
}

}  // extern "C"

#endif
