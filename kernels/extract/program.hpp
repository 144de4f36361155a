// Plan of calls: a feature plan that runs without a compiler, as calls into the library of operators. It stands where
// the generated code of a fused plan stands: see extract/extract.hpp for what its functions are for.
//
// A step whose function is mapped over the items of a list gathers them, up to BLOCK_ROWS at a time, whatever rows
// they are of; values of the row stand beside each of its items.
#pragma once
#include "extract/description.hpp"
#include "extract/extract.hpp"

namespace livectr::calls {

// Values of any type, which a step moves as bytes.
using Word4 [[gnu::may_alias]] = uint32_t;
using Word8 [[gnu::may_alias]] = uint64_t;
struct [[gnu::may_alias]] Text {
    const uint8_t* data;
    int32_t size;
};
struct [[gnu::may_alias]] Items {
    uint8_t* data;
    int32_t size;
};

class Program {
  public:
    struct Plan {
        int64_t rows = 0;
        std::vector<void*> columns;
        void* const* states = nullptr;
        uint8_t* scratch = nullptr;  // a step's converted and gathered inputs
    };

    Program() = default;
    explicit Program(const int64_t* words) : plan_(words) {
        for (const Output& field : plan_.fields) lists_ += field.kind >= LIST;
    }

    int64_t lists() const { return lists_; }
    int64_t dense() const { return plan_.dense; }
    int64_t nodes() const { return int64_t(plan_.nodes.size()); }
    int64_t row_bytes() const { return plan_.row_bytes + plan_.scratch; }
    int64_t shared_bytes() const { return 16 * nodes() + plan_.scratch * BLOCK_ROWS; }
    std::vector<uint8_t> list_fields() const {
        std::vector<uint8_t> found;
        for (const Output& field : plan_.fields) found.push_back(field.kind >= LIST);
        return found;
    }

    // A plan whose constants are in place.
    Plan plan() const {
        Plan made;
        made.columns.resize(plan_.nodes.size());
        made.columns.insert(made.columns.end(), plan_.constants.begin(), plan_.constants.end());
        return made;
    }

    void place(Plan& p, uint8_t* memory, int64_t rows, HostPool& kept) const {
        p.scratch = memory + plan_.row_bytes * BLOCK_ROWS;
        for (size_t i = 0; i < plan_.nodes.size(); ++i) {
            const Node& node = plan_.nodes[i];
            if (node.slot < 0) continue;
            p.columns[i] = node.kept ? static_cast<void*>(room<int64_t>(kept, rows)) : memory + node.slot * BLOCK_ROWS;
        }
    }
    void place_shared(Plan& p, uint8_t* memory) const {
        p.scratch = memory + 16 * nodes();
        for (size_t i = 0; i < plan_.nodes.size(); ++i) {
            if (plan_.nodes[i].slot >= 0) p.columns[i] = memory + 16 * i;
        }
    }

    void load(Plan& p, const Plan& shared, const uint8_t* shares, const Recall* const* known, const ArrowArray& batch,
              const int32_t* columns, int64_t first, int64_t rows, HostPool& pool, HostPool& kept) const {
        for (size_t i = 0; i < plan_.roots.size(); ++i) {
            const Root& root = plan_.roots[i];
            if (root.alone >= 0 && known[root.alone] != nullptr) continue;
            HostPool& memory = root.kept ? kept : pool;
            if (shares[root.node] == OWN) {
                load_root(p, root, *batch.children[columns[i]], batch.offset + first, rows, memory);
                continue;
            }
            with_column(kind(root.node), nullptr, [&](auto column) {
                auto one = column;
                one.values = static_cast<decltype(one.values)>(shared.columns[size_t(root.node)]);
                livectr::load_shared(column, one, rows, memory);
                p.columns[size_t(root.node)] = column.values;
            });
        }
    }
    void load_shared(Plan& p, const uint8_t* shares, const ArrowArray& batch, const int32_t* columns,
                     HostPool& pool) const {
        for (size_t i = 0; i < plan_.roots.size(); ++i) {
            const Root& root = plan_.roots[i];
            if (shares[root.node] != OWN) load_root(p, root, *batch.children[columns[i]], batch.offset, 1, pool);
        }
    }

    void run(const Plan& p, const Plan& shared, const uint8_t* shares, const Recall* const* known, int64_t first,
             const RowBlock& block) const {
        for (const Step& step : plan_.steps) {
            void* const out = p.columns[size_t(step.node)];
            if (step.part >= 0 && known[step.part] != nullptr) {
                if (step.place < 0) continue;
                const Recall& part = *known[step.part];
                with_column(kind(step.node), out,
                            [&](auto column) { part.give(column, step.place, first, block.rows); });
            } else if (shares[step.node] == OWN) {
                run(step, p, block);
            } else if (shares[step.node] == SPREAD) {
                void* const one = shared.columns[size_t(step.node)];
                with_column(kind(step.node), out, [&](auto column) {
                    auto from = column;
                    from.values = static_cast<decltype(from.values)>(one);
                    spread(column, from, block.rows);
                });
            }
        }
    }
    void run_shared(const Plan& p, const uint8_t* shares, const RowBlock& block) const {
        for (const Step& step : plan_.steps) {
            if (shares[step.node] != OWN) run(step, p, block);
        }
    }
    int64_t extent(const Plan& p, const uint8_t* shares) const {
        int64_t total = 0;
        for (size_t i = 0; i < plan_.nodes.size(); ++i) {
            if (shares[i] != SPREAD || plan_.nodes[i].kind < TEXT) continue;
            total +=
                with_column(plan_.nodes[i].kind, p.columns[i], [](auto column) { return livectr::extent(column); });
        }
        return total;
    }
    const ::Pool* output_pool(const Plan&) const { return plan_.has_output_pool ? &OUTPUTS : nullptr; }

    std::vector<Recall> recalls() const {
        std::vector<Recall> found;
        for (const Part& part : plan_.parts) found.emplace_back(part.widths, part.most_bytes);
        return found;
    }
    void load_text(int64_t part, Values<Str>& texts, const ArrowArray& batch, const int32_t* columns, int64_t first,
                   int32_t rows, HostPool& pool) const {
        const int64_t at = plan_.parts[size_t(part)].root;
        const Root& root = plan_.roots[size_t(at)];
        livectr::load(texts, *batch.children[columns[at]], batch.offset + first, rows, pool, fill<Str>(root));
    }
    void recall(int64_t number, Plan& p, uint8_t* memory, Recall& known, int64_t entry, int32_t rows, HostPool& items,
                HostPool& bytes) const {
        const Part& part = plan_.parts[size_t(number)];
        p.scratch = memory + plan_.row_bytes * BLOCK_ROWS;
        p.columns[size_t(plan_.roots[size_t(part.root)].node)] = known.texts.data() + entry;
        for (const int64_t node : part.nodes) {
            const int64_t place = plan_.step_of(node).place;
            p.columns[size_t(node)] = place < 0
                                          ? memory + plan_.nodes[size_t(node)].slot * BLOCK_ROWS
                                          : known.values[size_t(place)].data() + entry * part.widths[size_t(place)];
        }
        const RowBlock block{rows,
                             known.failed.data() + entry,
                             part.keeps_text ? known.items : items,
                             part.keeps_text ? known.bytes : bytes,
                             known.items,
                             nullptr,
                             true};
        for (const int64_t node : part.nodes) run(plan_.step_of(node), p, block);
    }

    void emit(const Plan& p, Emitter& emitter) const {
        const auto with = [&](const Output& output, auto use) {
            with_column(output.kind, p.columns[size_t(output.column)], use);
        };
        for (const Output& field : plan_.fields) with(field, [&](auto column) { emit_field(emitter, column); });
        for (const Output& number : plan_.numbers) {
            with(number, [&](auto column) { emit_numbers(emitter, column, number.place, number.width); });
        }
        for (size_t i = 0; i < plan_.observed.size(); ++i) {
            with(plan_.observed[i],
                 [&](auto column) { emit_words(emitter, column, int64_t(i), plan_.observed[i].place != 0); });
        }
    }

  private:
    static constexpr int64_t MOST_INPUTS = 16;
    inline static const ::Pool OUTPUTS{}, OTHERS{};

    Description plan_;
    int64_t lists_ = 0;

    int64_t kind(int64_t node) const { return plan_.nodes[size_t(node)].kind; }

    template <typename T>
    static T fill(const Root& root) {
        T value{};
        if (!root.has_fill) return value;
        if constexpr (std::is_same_v<T, Str>) {
            return Str{reinterpret_cast<const uint8_t*>(root.fill), int32_t(root.fill_size)};
        } else {
            memcpy(&value, &root.fill, sizeof value);
            return value;
        }
    }

    template <typename T>
    static void load_values(Values<T>& column, const Root& root, const ArrowArray& array, int64_t first, int64_t rows,
                            HostPool& pool) {
        livectr::load(column, array, first, rows, pool, fill<T>(root));
    }
    template <typename T>
    static void load_values(Lists<T>& column, const Root&, const ArrowArray& array, int64_t first, int64_t rows,
                            HostPool& pool) {
        livectr::load(column, array, first, rows, pool);
    }
    void load_root(Plan& p, const Root& root, const ArrowArray& array, int64_t first, int64_t rows,
                   HostPool& pool) const {
        with_column(kind(root.node), nullptr, [&](auto column) {
            load_values(column, root, array, first, rows, pool);
            p.columns[size_t(root.node)] = column.values;
        });
    }

    template <typename T>
    static void emit_field(Emitter& emitter, const Values<T>& column) {
        if constexpr (!std::is_same_v<T, Str>) emitter.field(column);
    }
    template <typename T>
    static void emit_field(Emitter& emitter, const Lists<T>& column) {
        if constexpr (!std::is_same_v<T, Str>) emitter.field(column);
    }
    template <typename T>
    static void emit_numbers(Emitter& emitter, const Values<T>& column, int64_t place, int64_t) {
        if constexpr (!std::is_same_v<T, Str>) emitter.number(column, place);
    }
    template <typename T>
    static void emit_numbers(Emitter& emitter, const Lists<T>& column, int64_t place, int64_t width) {
        if constexpr (!std::is_same_v<T, Str>) emitter.numbers(column, place, width);
    }
    template <typename T>
    static void emit_words(Emitter& emitter, const Values<T>& column, int64_t place, bool whole) {
        if constexpr (!std::is_same_v<T, Str>) {
            if (whole) emitter.words<int64_t>(column, place);
            else emitter.words<double>(column, place);
        }
    }
    template <typename T>
    static void emit_words(Emitter&, const Lists<T>&, int64_t, bool) {}

    static constexpr int64_t BUFFER = 16 * BLOCK_ROWS;  // bytes of a column of scratch

    // Calls a step's function for rows, or items, whose inputs are at `in`.
    void call(const Step& step, const Plan& p, void** in, void* out, const RowBlock& block) const {
        uint8_t* scratch = p.scratch;
        for (size_t i = 0; i < step.inputs.size(); ++i) {
            if (step.inputs[i].convert == nullptr) continue;
            step.inputs[i].convert(Call{scratch, in + i, nullptr, nullptr, nullptr, nullptr}, block);
            in[i] = scratch;
            scratch += BUFFER;
        }
        const void* const state = step.state < 0 ? nullptr : p.states[step.state];
        step.function(Call{out, in, step.arguments, step.resource, state, step.outputs ? &OUTPUTS : &OTHERS}, block);
    }

    void run(const Step& step, const Plan& p, const RowBlock& block) const {
        if (step.list >= 0) {
            run_items(step, p, block);
            return;
        }
        void* in[MOST_INPUTS];
        for (size_t i = 0; i < step.inputs.size(); ++i) in[i] = p.columns[size_t(step.inputs[i].column)];
        call(step, p, in, p.columns[size_t(step.node)], block);
    }

    // Items that lie one behind the other are read in place, if many; others are gathered.
    void run_items(const Step& step, const Plan& p, const RowBlock& block) const {
        const auto* const lists = static_cast<const Items*>(p.columns[size_t(step.inputs[size_t(step.list)].column)]);
        auto* const out = static_cast<Items*>(p.columns[size_t(step.node)]);
        const int64_t width = step.inputs[size_t(step.list)].bytes;
        int64_t total = 0;
        for (int32_t row = 0; row < block.rows; ++row) total += too_long(step, lists[row]) ? 0 : lists[row].size;
        HostPool& pool = block.pool_of(step.outputs ? OUTPUTS : OTHERS);
        uint8_t* at = pool.allocate(total * step.bytes);
        Gathering items{*this, step, p, block, at};
        for (int32_t row = 0; row < block.rows; ++row) {
            const Items list = lists[row];
            if (__builtin_expect(too_long(step, list), 0)) {
                block.failed[row] = 1;
                out[row] = Items{nullptr, 0};
                continue;
            }
            out[row] = Items{at, list.size};
            at += int64_t(list.size) * step.bytes;
            items.add(list.data, list.size, width, row);
        }
        items.flush();
    }
    static bool too_long(const Step& step, const Items& list) { return !step.alone && list.size > MAX_ROW_VALUES; }

    // Items of lists on their way to a function.
    struct Gathering {
        const Program& program;
        const Step& step;
        const Plan& p;
        const RowBlock& block;
        uint8_t* out;
        int32_t count = 0;             // items that wait
        const uint8_t* run = nullptr;  // where they lie, if one behind the other; else they are in `gathered`

        uint8_t* buffer(size_t i) const { return p.scratch + int64_t(step.inputs.size() + i) * BUFFER; }
        uint8_t* gathered() const { return buffer(size_t(step.list)); }

        void add(const uint8_t* data, int32_t size, int64_t width, int32_t row) {
            while (size > 0) {
                if (count == BLOCK_ROWS) flush();
                const int32_t n = std::min(size, BLOCK_ROWS - count);
                if (count == 0) run = data;
                if (run != nullptr && data != run + count * width) {
                    memcpy(gathered(), run, size_t(count * width));
                    run = nullptr;
                }
                if (run == nullptr) memcpy(gathered() + count * width, data, size_t(n * width));
                if (!step.alone) repeat(row, n);
                count += n;
                data += n * width;
                size -= n;
            }
        }
        // Values of the row beside its items.
        void repeat(int32_t row, int32_t n) const {
            for (size_t i = 0; i < step.inputs.size(); ++i) {
                const Input& input = step.inputs[i];
                if (int64_t(i) == step.list || input.column >= program.nodes()) continue;
                const uint8_t* const column = static_cast<const uint8_t*>(p.columns[size_t(input.column)]);
                switch (input.bytes) {
                    case 1: fill(column[row], i, n); break;
                    case 4: fill(reinterpret_cast<const Word4*>(column)[row], i, n); break;
                    case 8: fill(reinterpret_cast<const Word8*>(column)[row], i, n); break;
                    default: fill(reinterpret_cast<const Text*>(column)[row], i, n);
                }
            }
        }
        template <typename T>
        void fill(T value, size_t i, int32_t n) const {
            std::fill_n(reinterpret_cast<T*>(buffer(i)) + count, n, value);
        }

        void flush() {
            if (count == 0) return;
            void* in[MOST_INPUTS];
            for (size_t i = 0; i < step.inputs.size(); ++i) {
                const int64_t column = step.inputs[i].column;
                in[i] = column < program.nodes() ? static_cast<void*>(buffer(i)) : p.columns[size_t(column)];
            }
            if (run != nullptr) in[step.list] = const_cast<uint8_t*>(run);
            const RowBlock own{count, nullptr, block.items, block.bytes, block.kept, block.output, block.keeps};
            program.call(step, p, in, out, own);
            out += count * step.bytes;
            count = 0;
        }
    };
};

}  // namespace livectr::calls
