// Plan of calls: a feature plan that runs without a compiler, as calls into the library of operators. It stands where
// the generated code of a fused plan stands: see extract/extract.hpp for what its functions are for.
//
// ingest/extract/program.py describes a plan in words of 64 bits, which `Program` reads once:
//
//   columns    first the nodes in plan order, then constants: blocks of one repeated value
//   steps      one for each computed node, in plan order: its function, its columns, conversions of its inputs
//   roots, recalled parts, outputs
//
// A step whose function is mapped over the items of a list gathers them, up to BLOCK_ROWS at a time, whatever rows
// they are of; values of the row stand beside each of its items.
#pragma once
#include "extract/call.hpp"
#include "extract/extract.hpp"

namespace livectr {

// Type of a column, in the order of TYPES in ingest/extract/program.py.
enum Kind : int64_t { INT64, INT32, FLOAT32, FLOAT64, BOOL, TEXT, LIST = 8 };

// Calls use(Values<T>) or use(Lists<T>).
template <typename Use>
auto with_column(int64_t kind, void* column, Use use) {
    switch (kind) {
        case INT64: return use(values_at<int64_t>(column));
        case INT32: return use(values_at<int32_t>(column));
        case FLOAT32: return use(values_at<float>(column));
        case FLOAT64: return use(values_at<double>(column));
        case BOOL: return use(values_at<bool>(column));
        case TEXT: return use(values_at<Str>(column));
        case LIST + INT64: return use(lists_at<int64_t>(column));
        case LIST + INT32: return use(lists_at<int32_t>(column));
        case LIST + FLOAT32: return use(lists_at<float>(column));
        case LIST + FLOAT64: return use(lists_at<double>(column));
        case LIST + BOOL: return use(lists_at<bool>(column));
        default: return use(lists_at<Str>(column));
    }
}

inline int64_t kind_bytes(int64_t kind) {
    constexpr int64_t BYTES[] = {8, 4, 4, 8, 1, 16};
    return kind >= LIST ? int64_t(sizeof(Span<int64_t>)) : BYTES[kind];
}

class Program {
  public:
    struct Plan {
        int64_t rows = 0;
        std::vector<void*> columns;
        void* const* states = nullptr;
        uint8_t* scratch = nullptr;  // a step's converted and gathered inputs
    };

    Program() = default;
    explicit Program(const int64_t* words) {
        Reader read{words};
        nodes_.resize(size_t(read()));
        for (Node& node : nodes_) node = {read(), read(), read() != 0, nullptr};
        for (int64_t n = read(); n > 0; --n) constants_.push_back(read.pointer<void>());
        row_bytes_ = read(), scratch_ = read(), has_output_pool_ = read() != 0;
        for (int64_t n = read(); n > 0; --n) roots_.push_back({read(), read(), read(), read() != 0, read(), read()});
        for (int64_t n = read(); n > 0; --n) steps_.push_back(step(read));
        for (int64_t n = read(); n > 0; --n) parts_.push_back(part(read));
        for (int64_t n = read(); n > 0; --n) fields_.push_back({read(), read(), 0, 0});
        for (int64_t n = read(); n > 0; --n) numbers_.push_back({read(), read(), read(), read()});
        for (int64_t n = read(); n > 0; --n) observed_.push_back({read(), read(), read(), 0});
        dense_ = read();
        for (const Step& step : steps_) nodes_[size_t(step.node)].step = &step;
        for (const Output& field : fields_) lists_ += field.kind >= LIST;
    }
    // Nodes point to steps.
    Program(Program&&) = default;
    Program& operator=(Program&&) = default;

    int64_t lists() const { return lists_; }
    int64_t dense() const { return dense_; }
    int64_t nodes() const { return int64_t(nodes_.size()); }
    int64_t row_bytes() const { return row_bytes_ + scratch_; }
    int64_t shared_bytes() const { return 16 * nodes() + scratch_ * BLOCK_ROWS; }
    std::vector<uint8_t> list_fields() const {
        std::vector<uint8_t> found;
        for (const Output& field : fields_) found.push_back(field.kind >= LIST);
        return found;
    }

    // A plan whose constants are in place.
    Plan plan() const {
        Plan made;
        made.columns.resize(nodes_.size());
        made.columns.insert(made.columns.end(), constants_.begin(), constants_.end());
        return made;
    }

    void place(Plan& p, uint8_t* memory, int64_t rows, HostPool& kept) const {
        p.scratch = memory + row_bytes_ * BLOCK_ROWS;
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (nodes_[i].slot < 0) continue;
            p.columns[i] = nodes_[i].kept ? static_cast<void*>(room<int64_t>(kept, rows)) : memory + nodes_[i].slot * BLOCK_ROWS;
        }
    }
    void place_shared(Plan& p, uint8_t* memory) const {
        p.scratch = memory + 16 * nodes();
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (nodes_[i].slot >= 0) p.columns[i] = memory + 16 * i;
        }
    }

    void load(Plan& p, const Plan& shared, const uint8_t* shares, const Recall* const* known, const ArrowArray& batch,
              const int32_t* columns, int64_t first, int64_t rows, HostPool& pool, HostPool& kept) const {
        for (size_t i = 0; i < roots_.size(); ++i) {
            const Root& root = roots_[i];
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
    void load_shared(Plan& p, const uint8_t* shares, const ArrowArray& batch, const int32_t* columns, HostPool& pool) const {
        for (size_t i = 0; i < roots_.size(); ++i) {
            if (shares[roots_[i].node] != OWN) load_root(p, roots_[i], *batch.children[columns[i]], batch.offset, 1, pool);
        }
    }

    void run(const Plan& p, const Plan& shared, const uint8_t* shares, const Recall* const* known, int64_t first,
             const RowBlock& block) const {
        for (const Step& step : steps_) {
            void* const out = p.columns[size_t(step.node)];
            if (step.part >= 0 && known[step.part] != nullptr) {
                if (step.place < 0) continue;
                const Recall& part = *known[step.part];
                with_column(kind(step.node), out, [&](auto column) { part.give(column, step.place, first, block.rows); });
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
        for (const Step& step : steps_) {
            if (shares[step.node] != OWN) run(step, p, block);
        }
    }
    int64_t extent(const Plan& p, const uint8_t* shares) const {
        int64_t total = 0;
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (shares[i] != SPREAD || nodes_[i].kind < TEXT) continue;
            total += with_column(nodes_[i].kind, p.columns[i], [](auto column) { return livectr::extent(column); });
        }
        return total;
    }
    const ::Pool* output_pool(const Plan&) const { return has_output_pool_ ? &OUTPUTS : nullptr; }

    std::vector<Recall> recalls() const {
        std::vector<Recall> found;
        for (const Part& part : parts_) found.emplace_back(part.widths, part.most_bytes);
        return found;
    }
    void load_text(int64_t part, Values<Str>& texts, const ArrowArray& batch, const int32_t* columns, int64_t first,
                   int32_t rows, HostPool& pool) const {
        const int64_t at = parts_[size_t(part)].root;
        const Root& root = roots_[size_t(at)];
        livectr::load(texts, *batch.children[columns[at]], batch.offset + first, rows, pool, fill<Str>(root));
    }
    void recall(int64_t number, Plan& p, uint8_t* memory, Recall& known, int64_t entry, int32_t rows, HostPool& items,
                HostPool& bytes) const {
        const Part& part = parts_[size_t(number)];
        p.scratch = memory + row_bytes_ * BLOCK_ROWS;
        p.columns[size_t(roots_[size_t(part.root)].node)] = known.texts.data() + entry;
        for (const int64_t node : part.nodes) {
            const int64_t place = nodes_[size_t(node)].step->place;
            p.columns[size_t(node)] = place < 0 ? memory + nodes_[size_t(node)].slot * BLOCK_ROWS
                                                : known.values[size_t(place)].data() + entry * part.widths[size_t(place)];
        }
        const RowBlock block{rows, known.failed.data() + entry, part.keeps_text ? known.items : items,
                             part.keeps_text ? known.bytes : bytes, known.items, nullptr, true};
        for (const int64_t node : part.nodes) run(*nodes_[size_t(node)].step, p, block);
    }

    void emit(const Plan& p, Emitter& emitter) const {
        const auto with = [&](const Output& output, auto use) { with_column(output.kind, p.columns[size_t(output.column)], use); };
        for (const Output& field : fields_) with(field, [&](auto column) { emit_field(emitter, column); });
        for (const Output& number : numbers_) {
            with(number, [&](auto column) { emit_numbers(emitter, column, number.place, number.width); });
        }
        for (size_t i = 0; i < observed_.size(); ++i) {
            with(observed_[i], [&](auto column) { emit_words(emitter, column, int64_t(i), observed_[i].place != 0); });
        }
    }

  private:
    struct Step;
    struct Node {
        int64_t kind;
        int64_t slot;  // of the result, in bytes per row; -1: a root
        bool kept;     // keys, which outlive the block
        const Step* step;
    };
    struct Root {
        int64_t node;
        int64_t alone;  // part that alone reads it, or -1
        int64_t has_fill;
        bool kept;
        int64_t fill, fill_size;  // bytes of the number, or pointer and size of a text
    };
    struct Input {
        int64_t column;
        Function convert;  // null: stays
        int64_t bytes;     // of a value before it is converted
    };
    struct Step {
        int64_t node;
        Function function;
        bool outputs;    // its results are in the pool of outputs
        int64_t list;    // input whose items the function is mapped over; -1: it runs over rows
        bool alone;      // no other input differs from row to row
        int64_t bytes;   // of an item of the result
        int64_t part, place;  // part that knows the result, and its place there; -1: none
        int64_t state;   // number of the statistic
        const int64_t* arguments;
        const void* resource;
        std::vector<Input> inputs;
    };
    struct Part {
        int64_t root;  // its number among the roots
        bool keeps_text;
        int64_t most_bytes;
        std::vector<int64_t> widths;
        std::vector<int64_t> nodes;
    };
    struct Output {
        int64_t column, kind;
        int64_t place, width;  // of dense numbers; observed words: place is 1 for whole numbers
    };
    struct Reader {
        const int64_t* at;
        int64_t operator()() { return *at++; }
        template <typename T>
        T* pointer() { return reinterpret_cast<T*>(*at++); }
    };
    static constexpr int64_t MOST_INPUTS = 16;
    inline static const ::Pool OUTPUTS{}, OTHERS{};

    std::vector<Node> nodes_;
    std::vector<void*> constants_;
    std::vector<Root> roots_;
    std::vector<Step> steps_;
    std::vector<Part> parts_;
    std::vector<Output> fields_, numbers_, observed_;
    int64_t row_bytes_ = 0, scratch_ = 0, dense_ = 0, lists_ = 0;
    bool has_output_pool_ = false;

    static Step step(Reader& read) {
        Step made{read(), reinterpret_cast<Function>(read()), read() != 0, read(), read() != 0, read(), read(), read(), read(),
                  read.pointer<int64_t>(), read.pointer<void>(), {}};
        for (int64_t n = read(); n > 0; --n) made.inputs.push_back({read(), reinterpret_cast<Function>(read()), read()});
        return made;
    }
    static Part part(Reader& read) {
        Part made{read(), read() != 0, read(), {}, {}};
        for (int64_t n = read(); n > 0; --n) made.widths.push_back(read());
        for (int64_t n = read(); n > 0; --n) made.nodes.push_back(read());
        return made;
    }

    int64_t kind(int64_t node) const { return nodes_[size_t(node)].kind; }

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
    static void load_values(Values<T>& column, const Root& root, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool) {
        livectr::load(column, array, first, rows, pool, fill<T>(root));
    }
    template <typename T>
    static void load_values(Lists<T>& column, const Root&, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool) {
        livectr::load(column, array, first, rows, pool);
    }
    void load_root(Plan& p, const Root& root, const ArrowArray& array, int64_t first, int64_t rows, HostPool& pool) const {
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
        const auto* const lists = static_cast<const Span<uint8_t>*>(p.columns[size_t(step.inputs[size_t(step.list)].column)]);
        auto* const out = static_cast<Span<uint8_t>*>(p.columns[size_t(step.node)]);
        const int64_t width = step.inputs[size_t(step.list)].bytes;
        int64_t total = 0;
        for (int32_t row = 0; row < block.rows; ++row) total += too_long(step, lists[row]) ? 0 : lists[row].size;
        HostPool& pool = block.pool_of(step.outputs ? OUTPUTS : OTHERS);
        uint8_t* at = pool.allocate(total * step.bytes);
        Items items{*this, step, p, block, at};
        for (int32_t row = 0; row < block.rows; ++row) {
            const Span<uint8_t> list = lists[row];
            if (__builtin_expect(too_long(step, list), 0)) {
                block.failed[row] = 1;
                out[row] = Span<uint8_t>{nullptr, 0};
                continue;
            }
            out[row] = Span<uint8_t>{at, list.size};
            at += int64_t(list.size) * step.bytes;
            items.add(list.data, list.size, width, row);
        }
        items.flush();
    }
    static bool too_long(const Step& step, const Span<uint8_t>& list) { return !step.alone && list.size > MAX_ROW_VALUES; }

    // Items of lists on their way to a function.
    struct Items {
        const Program& program;
        const Step& step;
        const Plan& p;
        const RowBlock& block;
        uint8_t* out;
        int32_t count = 0;              // items that wait
        const uint8_t* run = nullptr;   // where they lie, if one behind the other; else they are in `gathered`

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
                    case 1: fill(reinterpret_cast<const uint8_t*>(column)[row], i, n); break;
                    case 4: fill(reinterpret_cast<const uint32_t*>(column)[row], i, n); break;
                    case 8: fill(reinterpret_cast<const uint64_t*>(column)[row], i, n); break;
                    default: fill(reinterpret_cast<const Str*>(column)[row], i, n);
                }
            }
        }
        template <typename T>
        void fill(T value, size_t i, int32_t n) const { std::fill_n(reinterpret_cast<T*>(buffer(i)) + count, n, value); }

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

}  // namespace livectr
