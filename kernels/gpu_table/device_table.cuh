// The dynamic table on a GPU: its kernels. kernels/gpu_table/device_table.py writes `Plan` (the argument of a launch), Layout and
// the sizes of slabs before this, and launches them; the rows' bits are those of the host's table, from the same
// functions.
//
// Nothing depends on which thread is first. A batch's distinct keys are numbered in the order of their first occurrence
// (below), new rows in that order by a prefix sum, and a row's gradients are added in the order of their occurrence.
#pragma once
#include "gpu_table/bucket_index.cuh"
#include "gpu_table/device_rows.cuh"
#include "runtime/kernel.cuh"

static __device__ __forceinline__ BucketIndex index_of(const Plan& p) { return {p.buckets, p.mask, p.salt}; }

static __device__ __forceinline__ uint32_t table_at(const Plan& p, int64_t i) {
    return p.tables ? p.tables[i] : uint32_t(p.table);
}

// Hyper-parameters may differ from table to table: each has its learning rates.
static __device__ __forceinline__ const float* hyper_of(const Plan& p, uint32_t table) {
    return p.hyper + int64_t(table) * p.hypers;
}

static __device__ __forceinline__ int64_t distinct(const Plan& p) { return p.groups[p.blocks]; }

// Searching and reading

KERNEL(find_rows) {
    each(block, p.n, [&](int64_t i) { p.row_of[i] = find_place(index_of(p), table_at(p, i), p.keys[i]).row; });
}

// out[n, D]: the values of row_of[n], 0 of no row; an item per part of a row.
KERNEL(read_values_of) {
    each(block, p.n * Lanes::COUNT, [&](int64_t item) {
        const int64_t i = item / Lanes::COUNT, part = item % Lanes::COUNT;
        const uint32_t row = p.row_of[i];
        Lanes::Part values{};
        if (row != NO_ROW) values = Lanes::read(p.slabs, row, part);
        Lanes::write(p.out + i * Layout::D, part, values);
    });
}

static __device__ __forceinline__ float row_float(const Plan& p, uint32_t row, int64_t f) {
    if (f < Layout::D) return Lanes::widened(device_values(p.slabs, row)[f]);
    float value;
    memcpy(&value, device_state(p.slabs, row) + 4 * (f - Layout::D), 4);
    return value;
}

// out[n, STRIDE]: the rows row_of[n]; an item per float.
KERNEL(read_rows) {
    each(block, p.n * Layout::STRIDE,
         [&](int64_t item) { p.out[item] = row_float(p, p.row_of[item / Layout::STRIDE], item % Layout::STRIDE); });
}

// out[n, D]: the initial values of keys without a row.
KERNEL(initial_rows) {
    each(block, p.n, [&](int64_t i) {
        if (p.row_of[i] != NO_ROW) return;
        const uint32_t table = table_at(p, i);
        Layout::values(p.out + i * Layout::D, initial_stream(p.seeds[table], p.keys[i]), hyper_of(p, table));
    });
}

KERNEL(read_headers) {
    each(block, p.n, [&](int64_t i) {
        const DeviceHeader header = *device_header(p.slabs, p.row_of[i]);
        p.keys_out[i] = header.key;
        p.tables_out[i] = header.table;
        p.changed_out[i] = header.generation > p.since;
    });
}

// The distinct keys of a batch, without a sort: occurrences meet in a scratch hash table of positions, where each key
// keeps its first. An entry only ever changes to another position of its key, so all threads may compare with it.

KERNEL(group_claim) {
    each(block, p.n, [&](int64_t i) {
        const int64_t key = p.keys[i];
        const uint32_t table = table_at(p, i), own = uint32_t(i) + 1;
        uint64_t at = key_hash(p.salt, table, key) >> 7 & p.scratch_mask;
        for (;; at = (at + 1) & p.scratch_mask) {
            uint32_t seen = peek(p.scratch + at);
            if (seen == 0) seen = atomicCAS(p.scratch + at, 0u, own);
            if (seen == 0) break;
            if (p.keys[seen - 1] != key || table_at(p, seen - 1) != table) continue;
            if (own < seen) atomicMin(p.scratch + at, own);
            break;
        }
        p.slot_of[i] = uint32_t(at);
    });
}

static __device__ __forceinline__ bool leads(const Plan& p, int64_t i) {
    return p.scratch[p.slot_of[i]] == uint32_t(i) + 1;
}

KERNEL(group_count) {
    count_chosen(block, index, p.n, p.groups, [&](int64_t i) { return leads(p, i); });
}

KERNEL(group_sums) { exclusive_sums(block, p.groups, p.blocks); }

KERNEL(group_number) {
    each_chosen(
        block, index, p.n, p.groups, [&](int64_t i) { return leads(p, i); },
        [&](int64_t i, int64_t id) {
            p.leader[id] = uint32_t(i);
            p.id_of[i] = uint32_t(id);
        });
}

KERNEL(group_spread) {
    each(block, p.n, [&](int64_t i) {
        if (!leads(p, i)) p.id_of[i] = p.id_of[p.scratch[p.slot_of[i]] - 1];
    });
}

// rows[distinct]: NO_ROW of missing keys, which are counted; the others' are stamped with the step.
KERNEL(find_groups) {
    count_chosen(block, index, distinct(p), p.missing, [&](int64_t id) {
        const int64_t i = p.leader[id];
        const uint32_t row = find_place(index_of(p), table_at(p, i), p.keys[i]).row;
        p.rows[id] = row;
        if (row == NO_ROW) return true;
        if (p.step != 0) device_header(p.slabs, row)->used = uint32_t(p.step);
        return false;
    });
}

KERNEL(missing_sums) { exclusive_sums(block, p.missing, p.blocks); }

// The distinct keys in order, and which are missing; an item per occurrence, since the host does not know U yet.
KERNEL(list_distinct) {
    each(block, distinct(p), [&](int64_t id) {
        const int64_t i = p.leader[id];
        p.keys_out[id] = p.keys[i];
        p.tables_out[id] = table_at(p, i);
        p.changed_out[id] = p.rows[id] == NO_ROW;
    });
}

// Lists the missing keys in order, for the host to fetch.
KERNEL(list_missing) {
    each_chosen(
        block, index, distinct(p), p.missing, [&](int64_t id) { return p.rows[id] == NO_ROW; },
        [&](int64_t id, int64_t rank) {
            p.keys_out[rank] = p.keys[p.leader[id]];
            p.tables_out[rank] = table_at(p, p.leader[id]);
        });
}

// New row of number `rank` among this launch's: freed rows first, the last freed before the others. Its floats are
// source[rank, STRIDE] (then the row is unchanged), or initial.
static __device__ __forceinline__ uint32_t insert_row(const Plan& p, int64_t rank, uint32_t table, int64_t key) {
    const uint32_t row =
        rank < p.free_count ? p.free_rows[p.free_count - 1 - rank] : uint32_t(p.next_row + rank - p.free_count);
    insert_slot(index_of(p), BucketSlot{key, row, table});
    *device_header(p.slabs, row) = {key, table, uint32_t(p.source ? 0 : p.generation), uint32_t(p.step), 0};
    if (p.source) {
        write_device_row(p.slabs, row, p.source + rank * Layout::STRIDE);
    } else {
        float floats[Layout::STRIDE];
        Layout::values(floats, initial_stream(p.seeds[table], key), hyper_of(p, table));
        Layout::state(floats, hyper_of(p, table));
        write_device_row(p.slabs, row, floats);
    }
    return row;
}

// Inserts rows for the missing keys, in their order.
KERNEL(insert_missing) {
    each_chosen(
        block, index, distinct(p), p.missing, [&](int64_t id) { return p.rows[id] == NO_ROW; },
        [&](int64_t id, int64_t rank) {
            const int64_t i = p.leader[id];
            p.rows[id] = insert_row(p, rank, table_at(p, i), p.keys[i]);
        });
}

KERNEL(spread_rows) {
    each(block, p.n, [&](int64_t i) { p.row_of[i] = p.rows[p.id_of[i]]; });
}

// Optimiser step. `order` holds id << 32 | position of every occurrence, sorted by the host's call between
// these two, so that a row's occurrences lie side by side in their order.

KERNEL(list_occurrences) {
    each(block, p.n, [&](int64_t i) { p.order[i] = uint64_t(p.id_of[i]) << 32 | uint64_t(i); });
}

KERNEL(find_starts) {
    each(block, p.n, [&](int64_t at) {
        const uint32_t id = uint32_t(p.order[at] >> 32);
        if (at == 0 || uint32_t(p.order[at - 1] >> 32) != id) p.starts[id] = uint32_t(at);
        if (at == p.n - 1) p.starts[id + 1] = uint32_t(p.n);
    });
}

static __device__ __forceinline__ int64_t cell_of(const Plan& p, int64_t at) {
    const uint32_t i = uint32_t(p.order[at]);
    return p.cells ? p.cells[i] : i;
}

// sums[distinct, D]; one item a float. A frequent key's gradients are loaded eight at a time, since the loads take
// long, and added one by one, in their order.
KERNEL(sum_gradients) {
    constexpr int AHEAD = 8;
    each(block, p.distinct * Layout::D, [&](int64_t item) {
        const int64_t id = item / Layout::D, d = item % Layout::D;
        const int64_t end = p.starts[id + 1];
        int64_t at = p.starts[id];
        float sum = p.grads[cell_of(p, at) * Layout::D + d];
        for (++at; at < end; at += AHEAD) {
            float ahead[AHEAD];
            for (int j = 0; j < AHEAD; ++j) {
                ahead[j] = at + j < end ? p.grads[cell_of(p, at + j) * Layout::D + d] : 0.0f;
            }
            for (int j = 0; j < AHEAD; ++j) sum = at + j < end ? sum + ahead[j] : sum;
        }
        p.sums[item] = sum;
    });
}

KERNEL(update_rows) {
    each(block, p.distinct, [&](int64_t id) {
        const uint32_t row = p.rows[id];
        DeviceHeader* const header = device_header(p.slabs, row);
        const uint64_t stream = sizeof(Layout::Value) == 4 ? 0 : initial_stream(p.seeds[header->table], header->key);
        update_row(device_values(p.slabs, row), device_state(p.slabs, row), p.sums + id * Layout::D, stream,
                   hyper_of(p, header->table));
        header->generation = uint32_t(p.generation);
    });
}

// Of equal keys the last of source[n, STRIDE] counts.
KERNEL(assign_rows) {
    each(block, p.distinct, [&](int64_t id) {
        const uint32_t row = p.rows[id], last = uint32_t(p.order[p.starts[id + 1] - 1]);
        write_device_row(p.slabs, row, p.source + int64_t(last) * Layout::STRIDE);
        device_header(p.slabs, row)->generation = uint32_t(p.generation);
    });
}

// Erasing rows

KERNEL(count_found) {
    count_chosen(block, index, p.n, p.groups, [&](int64_t id) { return p.rows[id] != NO_ROW; });
}

KERNEL(list_found) {
    each_chosen(
        block, index, p.n, p.groups, [&](int64_t id) { return p.rows[id] != NO_ROW; },
        [&](int64_t id, int64_t rank) { p.row_of[rank] = p.rows[id]; });
}

// A row leaves the index and becomes the free row number `at`.
static __device__ __forceinline__ void release(const Plan& p, uint32_t row, int64_t at) {
    DeviceHeader* const header = device_header(p.slabs, row);
    erase_place(find_place(index_of(p), header->table, header->key));
    header->table = FREE_ROW;
    p.free_rows[at] = row;
}

// The rows row_of[n], all different, leave.
KERNEL(release_rows) {
    each(block, p.n, [&](int64_t i) { release(p, p.row_of[i], p.free_count + i); });
}

// Choosing among all rows, by number

static __device__ __forceinline__ bool changed(const Plan& p, int64_t row) {
    const DeviceHeader* const header = device_header(p.slabs, uint32_t(row));
    return header->table != FREE_ROW && (p.all != 0 || header->generation > p.since);
}

KERNEL(count_changed) {
    count_chosen(block, index, p.n, p.groups, [&](int64_t row) { return changed(p, row); });
}

KERNEL(list_changed) {
    each_chosen(
        block, index, p.n, p.groups, [&](int64_t row) { return changed(p, row); },
        [&](int64_t row, int64_t rank) { p.row_of[rank] = uint32_t(row); });
}

// Eviction of the least recently used rows of a window: the n rows from `hand` on, in a circle. So a choice reads n
// headers, not all. Rows used in `step` or later stay.

// order[n]: last step << 32 | row; KEPT of free rows and of those that stay. The host's call sorts it then.
constexpr uint64_t KEPT = ~uint64_t{0};

KERNEL(list_window) {
    each(block, p.n, [&](int64_t i) {
        const uint32_t row = uint32_t((p.hand + i) % p.next_row);
        const DeviceHeader* const header = device_header(p.slabs, row);
        const bool leaves = header->table != FREE_ROW && header->used < p.step;
        p.order[i] = leaves ? uint64_t(header->used) << 32 | row : KEPT;
    });
}

// The first n rows of the order leave, as far as it has rows; groups[0], which was 0, becomes their number.
KERNEL(evict_oldest) {
    each(block, p.n, [&](int64_t i) {
        if (p.order[i] == KEPT) return;
        if (i + 1 == p.n || p.order[i + 1] == KEPT) p.groups[0] = i + 1;
        const uint32_t row = uint32_t(p.order[i]);
        const DeviceHeader* const header = device_header(p.slabs, row);
        p.keys_out[i] = header->key;
        p.tables_out[i] = header->table;
        p.changed_out[i] = header->generation > p.since;
        release(p, row, p.free_count + i);
    });
}

// out[n, STRIDE]: the rows that left, which are still where they were; an item per float.
KERNEL(read_evicted) {
    each(block, p.groups[0] * Layout::STRIDE, [&](int64_t item) {
        p.out[item] = row_float(p, uint32_t(p.order[item / Layout::STRIDE]), item % Layout::STRIDE);
    });
}

// Growing: every slot of old_buckets[n / 16] goes to the cleared buckets; an item per slot.
KERNEL(rehash) {
    each(block, p.n, [&](int64_t item) {
        const Bucket& bucket = p.old_buckets[item / 16];
        const int32_t slot = int32_t(item % 16);
        if (slot == BUCKET_SLOTS) return;
        const uint64_t digest = bucket.digests.words[slot / 8] >> (8 * (slot % 8)) & 0xFF;
        if (digest > ERASED_DIGEST) insert_slot(index_of(p), bucket.slots[slot]);
    });
}
