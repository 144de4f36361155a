// Host driver of a generated feature plan: reads Arrow columns in place, runs the layers over blocks of rows on
// all threads, and packs the results. The plan itself is generated (ingest/extract/codegen.py).
//
// Common features: values that all rows of a batch share come as a batch of a single row. Nodes that depend on
// shared values only are computed once. Other nodes read them broadcast over their blocks; of strings and lists
// only pointers and sizes are copied, so a long shared value costs its bytes once.
//
// A generated file defines `Plan` and `struct Generated`; extract/program.hpp has both for a plan of calls. `Generated`
// has
//   lists(), dense(), nodes()                 numbers of fields that are lists, of dense numbers, of nodes
//   row_bytes()                               of the columns of results, per row
//   shared_bytes()                            of the columns of the shared row
//   place(Plan&, uint8_t*, int64_t rows, HostPool& kept)
//                                             gives the columns of results their memory; keys have theirs in `kept`
//   place_shared(Plan&, uint8_t*)             the same for the shared row
//   load(Plan&, const Plan& shared, const uint8_t* shares, const ArrowArray&, const int32_t* columns, int64_t first,
//        int32_t rows, HostPool&, HostPool& kept)
//                                             roots; roots that are outputs have their copies in `kept`
//   load_shared(Plan&, const uint8_t* shares, const ArrowArray&, const int32_t* columns, HostPool&)
//   run(const Plan&, const Plan& shared, const uint8_t* shares, const RowBlock&)
//                                             all layers
//   run_shared(const Plan&, const uint8_t* shares, const RowBlock&)
//   extent(const Plan& shared, const uint8_t* shares)
//                                             bytes and values that each row reads of the shared row
//   output_pool(const Plan&)                  the pool of the outputs that are lists, or null
//   recalls()                                 memories of functions of a text, one for each text (extract/recall.hpp)
//   recall(int64_t part, Plan&, uint8_t* memory, Recall&, int64_t entry, int32_t rows, HostPool& items, HostPool& bytes)
//                                             computes a part's functions of new texts
//   load_text(int64_t part, Values<Str>&, const ArrowArray&, const int32_t* columns, int64_t first, int32_t rows,
//             HostPool&)
//   Parts that are null in `known` are computed row by row as other nodes are.
//   emit(const Plan&, Emitter&)               every output, in order
#pragma once
#include "extract/arrow.hpp"
#include "extract/emitter.hpp"
#include "extract/recall.hpp"
#include "runtime/threads.hpp"

#include <atomic>
#include <mutex>

namespace livectr {

enum Failure : int64_t { TOO_LONG = -1, OUT_OF_MEMORY = -2, BAD_ARRAY = -3, TOO_MANY_VALUES = -4, TOO_MUCH_READ = -5 };

// Sharing of a node's value.
enum Share : uint8_t {
    OWN = 0,     // a value per row
    SPREAD = 1,  // shared, and read by other nodes or dense outputs
    APART = 2,   // shared, and read by shared nodes only
};

// Shared values of rows, and limits of results.
struct Sharing {
    const ArrowArray* batch;  // the row of the shared roots
    const int32_t* columns;   // of the roots that are shared
    const uint8_t* shares;    // Share of each node
    const uint8_t* fields;    // uint8[FIELDS]: 1 where a field is shared
    int64_t rows;             // rows of the batch, whose own part may have no columns
    int64_t most_values;      // of lists, in fields that are not shared
    int64_t most_bytes;       // of one pool
    int64_t most_read;        // of the shared row, by all rows
    int64_t keys, failed;     // results: keys of shared fields; 1 if the shared row failed
};

// One call at a time; kept for the next, so that memory is allocated once.
template <typename Plan, typename Generated>
struct Context {
    struct Worker {
        Plan plan;
        Memory columns;
        HostPool items, bytes;
    };
    // Shared row. It lives until `gather` is done, because other nodes' results may point into it.
    struct Shared {
        Plan plan;
        Memory columns;
        HostPool items, bytes;
        std::vector<BlockKeys> blocks{1};
    };
    Generated generated;
    Plan plan{};  // resources and statistics
    std::vector<std::unique_ptr<Worker>> idle;
    std::vector<Recall> recalls = generated.recalls();
    std::vector<const Recall*> known = std::vector<const Recall*>(recalls.size());  // null: not for this batch
    std::unique_ptr<Shared> shared;
    std::mutex mutex;
    std::vector<BlockKeys> blocks;
    std::vector<uint8_t> list_fields = generated.list_fields();
    std::vector<uint8_t> all_own =
        std::vector<uint8_t>(size_t(generated.nodes()) + 1);  // no static: libraries share it
    int64_t rows = 0;
    std::atomic<int64_t> replaced{0}, reruns{0};

    explicit Context(Generated program = Generated()) : generated(std::move(program)) {}

    std::unique_ptr<Worker> acquire() {
        std::lock_guard<std::mutex> lock(mutex);
        if (idle.empty()) {
            auto worker = std::make_unique<Worker>();
            worker->columns = aligned(std::max<int64_t>(generated.row_bytes(), 1) * BLOCK_ROWS);
            return worker;
        }
        auto worker = std::move(idle.back());
        idle.pop_back();
        return worker;
    }
    void release(std::unique_ptr<Worker> worker) {
        std::lock_guard<std::mutex> lock(mutex);
        idle.push_back(std::move(worker));
    }

    // Returns the number of keys, or a Failure. The batches stay the caller's, and must live until `gather` is done.
    // sharing: null where rows share nothing.
    int64_t extract(const ArrowArray& batch, const int32_t* columns, float* dense, int64_t* observed, uint8_t* failed,
                    Sharing* sharing) {
        rows = sharing == nullptr ? batch.length : sharing->rows;
        replaced = reruns = 0;
        if (sharing != nullptr) {
            const int64_t failure = share(*sharing);
            if (failure != 0) return failure;
            if (sharing->failed) return 0;
        }
        const uint8_t* const shares = sharing == nullptr ? all_own.data() : sharing->shares;
        const int64_t most_bytes = sharing == nullptr ? INT64_MAX : sharing->most_bytes;
        blocks.resize(size_t((rows + BLOCK_ROWS - 1) / BLOCK_ROWS));
        std::atomic<int64_t> values{0}, failure{0};
        recall(batch, columns, sharing == nullptr && rows >= LEAST_RECALLED, failure);
        const auto run = [&](int64_t block) {
            auto worker = acquire();
            const int64_t first = block * BLOCK_ROWS, count = std::min<int64_t>(BLOCK_ROWS, rows - first);
            worker->plan = plan;
            worker->plan.rows = count;
            BlockKeys& out = blocks[size_t(block)];
            for (HostPool* pool : {&worker->items, &worker->bytes, &out.memory}) {
                pool->most = most_bytes;
                pool->reset();
            }
            const int64_t grown = worker->items.grown + worker->bytes.grown;
            const Plan& shared_plan = sharing == nullptr ? worker->plan : shared->plan;
            generated.place(worker->plan, worker->columns.get(), count, out.memory);
            generated.load(worker->plan, shared_plan, shares, known.data(), batch, columns, first, int32_t(count),
                           worker->items, out.memory);
            out.begin(generated.lists(), count);
            const ::Pool* const outputs = generated.output_pool(worker->plan);
            const RowBlock own{int32_t(count), failed + first, worker->items, worker->bytes, out.memory, outputs};
            for (const Recall* part : known) {
                if (part != nullptr) part->give_failed(failed + first, first, count);
            }
            generated.run(worker->plan, shared_plan, shares, known.data(), first, own);
            Emitter emitter{out,
                            first,
                            count,
                            rows,
                            generated.dense(),
                            dense,
                            observed,
                            sharing == nullptr ? nullptr : sharing->fields};
            generated.emit(worker->plan, emitter);
            replaced += emitter.replaced;
            reruns += worker->items.grown + worker->bytes.grown - grown;
            release(std::move(worker));
            if (sharing == nullptr) return;
            int64_t listed = 0;
            for (int64_t i = 0; i < emitter.list * count; ++i) listed += out.lengths[size_t(i)];
            if ((values += listed) > sharing->most_values) throw PoolLimit();
        };
        parallel_for(int64_t(blocks.size()), [&](int64_t block) {
            try {
                if (failure == 0) run(block);
            } catch (const PoolLimit&) {
                failure = TOO_MANY_VALUES;
            } catch (const BadArray&) {
                failure = BAD_ARRAY;
            }
        });
        if (failure != 0) return failure;
        int64_t keys = 0;
        for (const BlockKeys& block : blocks) keys += block.keys();
        return keys > INT32_MAX ? int64_t(TOO_LONG) : keys;
    }

    // offsets int32[fields·B + 1] and keys int64[nnz], field-major, of the fields that rows have of their own.
    void gather(int32_t* offsets, int64_t* keys, const Sharing* sharing) {
        const uint8_t* const fields = sharing == nullptr ? nullptr : sharing->fields;
        gather(blocks, rows, wanted(fields, false), offsets, keys);
    }
    // As `gather`, for the shared fields, which have a single row.
    void gather_shared(int32_t* offsets, int64_t* keys, const Sharing& sharing) {
        gather(shared->blocks, 1, wanted(sharing.fields, true), offsets, keys);
    }

  private:
    // Finds the batch's texts among those that are known, text column by text column.
    void recall(const ArrowArray& batch, const int32_t* columns, bool wanted, std::atomic<int64_t>& failure) {
        for (size_t part = 0; part < recalls.size(); ++part) {
            known[part] = wanted && recalls[part].begin(rows) ? &recalls[part] : nullptr;
        }
        parallel_for(wanted ? int64_t(recalls.size()) : 0, [&](int64_t part) {
            if (known[size_t(part)] == nullptr) return;
            auto worker = acquire();
            worker->plan = plan;
            const auto run = [&](int64_t entry, int64_t count) {
                worker->plan.rows = count;
                generated.recall(part, worker->plan, worker->columns.get(), recalls[size_t(part)], entry,
                                 int32_t(count), worker->items, worker->bytes);
            };
            try {
                for (int64_t first = 0; first < rows; first += BLOCK_ROWS) {
                    const int64_t count = std::min<int64_t>(BLOCK_ROWS, rows - first);
                    for (HostPool* pool : {&worker->items, &worker->bytes}) {
                        pool->most = INT64_MAX;
                        pool->reset();
                    }
                    Values<Str> texts;
                    generated.load_text(part, texts, batch, columns, first, int32_t(count), worker->items);
                    recalls[size_t(part)].find(texts.values, first, count, run);
                }
            } catch (const BadArray&) {
                failure = BAD_ARRAY;
            }
            release(std::move(worker));
        });
    }

    // Computes the shared row, and the amount that other rows read of it. Returns 0 or a Failure.
    int64_t share(Sharing& sharing) {
        if (!shared) {
            shared = std::make_unique<Shared>();
            shared->columns = aligned(std::max<int64_t>(generated.shared_bytes(), 1));
        }
        uint8_t failed = 0;
        try {
            BlockKeys& out = shared->blocks[0];
            for (HostPool* pool : {&shared->items, &shared->bytes, &out.memory}) {
                pool->most = sharing.most_bytes;
                pool->reset();
            }
            Plan& shared_plan = shared->plan = plan;
            shared_plan.rows = 1;
            generated.place_shared(shared_plan, shared->columns.get());
            generated.load_shared(shared_plan, sharing.shares, *sharing.batch, sharing.columns, shared->items);
            out.begin(generated.lists(), 1);
            const ::Pool* const outputs = generated.output_pool(shared_plan);
            generated.run_shared(shared_plan, sharing.shares,
                                 RowBlock{1, &failed, shared->items, shared->bytes, out.memory, outputs});
            Emitter emitter{out, 0, 1, 1, generated.dense(), nullptr, nullptr, sharing.fields, true};
            generated.emit(shared_plan, emitter);
            sharing.keys = out.keys();
            sharing.failed = failed;
            const int64_t read = generated.extent(shared_plan, sharing.shares);
            return read > sharing.most_read / std::max<int64_t>(rows, 1) ? TOO_MUCH_READ : 0;
        } catch (const PoolLimit&) {
            return TOO_MANY_VALUES;
        } catch (const BadArray&) {
            return BAD_ARRAY;
        }
    }

    // Per wanted field: 1 if it is a list.
    std::vector<uint8_t> wanted(const uint8_t* fields, bool shared) const {
        std::vector<uint8_t> found;
        for (size_t f = 0; f < list_fields.size(); ++f) {
            if (fields == nullptr || (fields[f] != 0) == shared) found.push_back(list_fields[f]);
        }
        return found;
    }

    // Short pieces lie apart.
    static void fetch_ahead(const BlockKeys& block, size_t piece) {
        if (piece >= block.pieces.size() || block.pieces[piece].size > 64) return;
        const auto* const keys = reinterpret_cast<const char*>(block.pieces[piece].keys);
        for (int64_t at = 0; at < 8 * block.pieces[piece].size; at += 64) __builtin_prefetch(keys + at);
    }

    static void gather(const std::vector<BlockKeys>& blocks, int64_t rows, const std::vector<uint8_t>& lists,
                       int32_t* offsets, int64_t* keys) {
        const int64_t fields = int64_t(lists.size()), count = int64_t(blocks.size());
        std::vector<int64_t> base(size_t(fields * count + 1));
        for (int64_t f = 0, total = 0; f < fields; ++f) {
            for (int64_t b = 0; b < count; ++b) {
                base[size_t(f * count + b)] = total;
                total += blocks[size_t(b)].sizes[size_t(f)];
            }
        }
        offsets[0] = 0;
        parallel_for(count, [&](int64_t b) {
            const BlockKeys& block = blocks[size_t(b)];
            const int64_t first = b * BLOCK_ROWS, size = std::min<int64_t>(BLOCK_ROWS, rows - first);
            const int32_t* lengths = block.lengths.data();
            for (int64_t f = 0; f < fields; ++f) {
                int64_t at = base[size_t(f * count + b)];
                int64_t* target = keys + at;
                for (size_t i = f > 0 ? block.ends[size_t(f - 1)] : 0; i < block.ends[size_t(f)]; ++i) {
                    fetch_ahead(block, i + 4);
                    memcpy(target, block.pieces[i].keys, size_t(block.pieces[i].size) * 8);
                    target += block.pieces[i].size;
                }
                int32_t* const ends = offsets + f * rows + first + 1;
                if (lists[size_t(f)]) {
                    for (int64_t row = 0; row < size; ++row) ends[row] = int32_t(at += lengths[row]);
                    lengths += size;
                } else {
                    for (int64_t row = 0; row < size; ++row) ends[row] = int32_t(at + row + 1);
                }
            }
        });
    }
};

}  // namespace livectr
