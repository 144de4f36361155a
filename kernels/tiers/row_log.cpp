// Rows by (table, key) in a file: a log in segments (Rosenblum, Ousterhout 1992, "The Design and Implementation of a
// Log-Structured File System", section 3), with the slots of all rows in memory (`SlotIndex`).
//
// Rows are appended to a segment in memory, which is written at once when it is full: writes are sequential, in whatever
// order keys come. A row that is written again or erased leaves a dead slot. A segment of dead slots alone is used again;
// when more than a third of all slots are dead, the live rows of the segments with fewest are appended again. Files are
// read through a mapping: the page cache keeps what fits, and threads wait for several pages of the disk at once.
//
// A record: key (8 bytes), table (4), row (`width`). The file takes at most 1.5 times the records and four segments.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#include "runtime/threads.hpp"
#include "tiers/slot_index.hpp"

namespace {

// The disk failed: an errno.
struct DiskError {
    int number;
};

class RowLog {
  public:
    RowLog(int file, int64_t width, int64_t segment_bytes) : file_(file), width_(width), record_(width + 12) {
        while (record_ << (shift_ + 1) <= segment_bytes) ++shift_;
        bytes_ = ((record_ << shift_) + PAGE - 1) / PAGE * PAGE;
        head_.reset(new char[bytes_]());
        head_segment_ = take();
    }
    ~RowLog() {
        for (char* const extent : extents_) munmap(extent, EXTENT * bytes_);
    }
    RowLog(const RowLog&) = delete;

    int64_t size() const {
        const std::shared_lock lock(mutex_);
        return rows_;
    }
    int64_t file_bytes() const {
        const std::shared_lock lock(mutex_);
        return segments() * bytes_;
    }
    int64_t memory_bytes() const {
        const std::shared_lock lock(mutex_);
        int64_t total = bytes_;
        for (const SlotIndex& index : indexes_) total += index.bytes();
        return total;
    }

    // rows[n, width]; a key's later row replaces its earlier row
    void put(const uint32_t* tables, const int64_t* keys, int64_t n, const char* rows) {
        const std::unique_lock lock(mutex_);
        for (int64_t i = 0; i < n; ++i) {
            if (tables[i] >= indexes_.size()) indexes_.resize(tables[i] + 1);
            if (i + AHEAD < n) ahead(tables[i + AHEAD], keys[i + AHEAD]);
            store(tables[i], keys[i], rows + i * width_);
        }
        compact();
    }

    // found[n], and the rows of the found keys one after the other; returns their number
    int64_t get(const uint32_t* tables, const int64_t* keys, int64_t n, uint8_t* found, char* rows) const {
        const std::shared_lock lock(mutex_);
        std::vector<uint32_t> slots;
        slots.reserve(n);
        for (int64_t i = 0; i < n; ++i) {
            if (i + AHEAD < n) ahead(tables[i + AHEAD], keys[i + AHEAD]);
            const uint32_t slot = tables[i] < indexes_.size() ? indexes_[tables[i]].find(keys[i]) : NO_SLOT;
            found[i] = slot != NO_SLOT;
            if (found[i]) slots.push_back(slot);
        }
        copy(slots.data(), slots.size(), nullptr, rows);
        return slots.size();
    }

    void erase(const uint32_t* tables, const int64_t* keys, int64_t n) {
        const std::unique_lock lock(mutex_);
        for (int64_t i = 0; i < n; ++i) {
            if (tables[i] < indexes_.size()) drop(indexes_[tables[i]].erase(keys[i]));
        }
    }

    void clear(uint32_t table) {
        const std::unique_lock lock(mutex_);
        if (table >= indexes_.size()) return;
        for (const uint32_t slot : indexes_[table].slots()) drop(slot);
        indexes_[table] = SlotIndex();
    }

    int64_t rows_of(uint32_t table) const {
        const std::shared_lock lock(mutex_);
        return table < indexes_.size() ? indexes_[table].size() : 0;
    }

    // slots[rows_of(table)], in the order of the file
    void slots(uint32_t table, uint32_t* slots) const {
        const std::shared_lock lock(mutex_);
        if (table >= indexes_.size()) return;
        const std::vector<uint32_t> all = indexes_[table].slots();
        std::copy(all.begin(), all.end(), slots);
        std::sort(slots, slots + all.size());
    }

    // keys[n] and rows[n, width] of slots, which no call may have changed since
    void read(const uint32_t* slots, int64_t n, int64_t* keys, char* rows) const {
        const std::shared_lock lock(mutex_);
        copy(slots, n, keys, rows);
    }

  private:
    static constexpr int64_t PAGE = 65536;  // a multiple of every page size of Linux
    static constexpr int64_t EXTENT = 64;   // segments of a mapping: a process may have 65,530 mappings
    static constexpr int64_t AHEAD = 8, GRAIN = 64;
    static constexpr int64_t SPARE = 4;  // segments that may be dead, however few rows there are

    int file_;
    int64_t width_, record_, bytes_;  // of a row, a record, a segment
    int shift_ = 0;                   // a segment has 2^shift_ slots
    std::vector<SlotIndex> indexes_;
    std::vector<uint32_t> live_;  // segment -> live slots
    std::vector<uint32_t> free_;
    std::vector<char*> extents_;
    std::unique_ptr<char[]> head_;  // the segment that is not written yet
    uint32_t head_segment_ = 0;
    int64_t head_slots_ = 0;
    int64_t rows_ = 0;
    mutable std::shared_mutex mutex_;

    int64_t slots_per_segment() const { return int64_t{1} << shift_; }
    int64_t segments() const { return static_cast<int64_t>(live_.size()) - static_cast<int64_t>(free_.size()); }

    void ahead(uint32_t table, int64_t key) const {
        if (table < indexes_.size()) indexes_[table].ahead(key);
    }

    const char* at(uint32_t slot) const {
        const uint32_t segment = slot >> shift_;
        const int64_t place = (slot & (slots_per_segment() - 1)) * record_;
        if (segment == head_segment_) return head_.get() + place;
        return extents_[segment / EXTENT] + segment % EXTENT * bytes_ + place;
    }

    void copy(const uint32_t* slots, int64_t n, int64_t* keys, char* rows) const {
        livectr::parallel_chunks(n, GRAIN, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (i + AHEAD < end) {
                    const char* const later = at(slots[i + AHEAD]);
                    for (int64_t byte = 0; byte < record_; byte += 64) prefetch(later + byte);
                }
                const char* const record = at(slots[i]);
                if (keys) memcpy(keys + i, record, 8);
                memcpy(rows + i * width_, record + 12, width_);
            }
        });
    }

    void store(uint32_t table, int64_t key, const char* row) {
        if (head_slots_ == slots_per_segment()) turn();
        char* const record = head_.get() + head_slots_ * record_;
        memcpy(record, &key, 8);
        memcpy(record + 8, &table, 4);
        memcpy(record + 12, row, width_);
        const uint32_t slot = static_cast<uint32_t>((int64_t{head_segment_} << shift_) + head_slots_);
        const uint32_t former = indexes_[table].put(key, slot);
        ++head_slots_;
        ++live_[head_segment_];
        ++rows_;
        drop(former);
    }

    // Writes the head and begins another segment.
    void turn() {
        if (live_[head_segment_] > 0) {
            for (int64_t done = 0; done < bytes_;) {
                const int64_t wrote = pwrite(file_, head_.get() + done, bytes_ - done, head_segment_ * bytes_ + done);
                if (wrote < 0 && errno == EINTR) continue;
                if (wrote <= 0) throw DiskError{wrote < 0 ? errno : EIO};
                done += wrote;
            }
            head_segment_ = take();
        }
        head_slots_ = 0;
    }

    // A segment without rows; the file grows where there is none.
    uint32_t take() {
        if (free_.empty()) {
            const int64_t segment = live_.size();
            if ((segment + 1) << shift_ >= int64_t{NO_SLOT}) throw DiskError{EFBIG};
            if (segment % EXTENT == 0) {
                if (ftruncate(file_, (segment + EXTENT) * bytes_) != 0) throw DiskError{errno};
                void* const mapped = mmap(nullptr, EXTENT * bytes_, PROT_READ, MAP_SHARED, file_, segment * bytes_);
                if (mapped == MAP_FAILED) throw DiskError{errno};
                madvise(mapped, EXTENT * bytes_, MADV_RANDOM);  // a hint: a row's neighbours are not wanted
                extents_.push_back(static_cast<char*>(mapped));
            }
            live_.push_back(0);
            return static_cast<uint32_t>(segment);
        }
        const uint32_t segment = free_.back();
        free_.pop_back();
        return segment;
    }

    void drop(uint32_t slot) {
        if (slot == NO_SLOT) return;
        const uint32_t segment = slot >> shift_;
        --rows_;
        if (--live_[segment] == 0 && segment != head_segment_) free_.push_back(segment);
    }

    // Appends the live rows of the emptiest segments, until a third of the slots at most is dead.
    void compact() {
        while ((segments() - SPARE) * slots_per_segment() > rows_ + rows_ / 2) {
            uint32_t victim = NO_SLOT;
            for (size_t segment = 0; segment < live_.size(); ++segment) {
                if (segment == head_segment_ || live_[segment] == 0) continue;
                if (victim == NO_SLOT || live_[segment] < live_[victim]) victim = static_cast<uint32_t>(segment);
            }
            if (victim == NO_SLOT) return;
            const uint32_t first = victim << shift_;
            for (uint32_t i = 0; live_[victim] > 0; ++i) {
                const char* const record = at(first + i);
                int64_t key;
                uint32_t table;
                memcpy(&key, record, 8);
                memcpy(&table, record + 8, 4);
                if (indexes_[table].find(key) == first + i) store(table, key, record + 12);
            }
        }
    }
};

template <typename Call>
int64_t answered(Call&& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    } catch (const DiskError& error) {
        return -error.number;
    }
}

}  // namespace

// Results: a count, or an errno below 0.
extern "C" {

int64_t log_new(int32_t file, int64_t width, int64_t segment_bytes, RowLog** made) {
    return answered([&] { return *made = new RowLog(file, width, segment_bytes), 0; });
}
void log_delete(RowLog* log) { delete log; }
int64_t log_size(const RowLog* log) { return log->size(); }
int64_t log_file_bytes(const RowLog* log) { return log->file_bytes(); }
int64_t log_memory_bytes(const RowLog* log) { return log->memory_bytes(); }
int64_t log_put(RowLog* log, const uint32_t* tables, const int64_t* keys, int64_t n, const char* rows) {
    return answered([&] { return log->put(tables, keys, n, rows), n; });
}
int64_t log_get(const RowLog* log, const uint32_t* tables, const int64_t* keys, int64_t n, uint8_t* found, char* rows) {
    return answered([&] { return log->get(tables, keys, n, found, rows); });
}
int64_t log_erase(RowLog* log, const uint32_t* tables, const int64_t* keys, int64_t n) {
    return answered([&] { return log->erase(tables, keys, n), n; });
}
int64_t log_clear(RowLog* log, uint32_t table) {
    return answered([&] { return log->clear(table), 0; });
}
int64_t log_rows_of(const RowLog* log, uint32_t table) { return log->rows_of(table); }
int64_t log_slots(const RowLog* log, uint32_t table, uint32_t* slots) {
    return answered([&] { return log->slots(table, slots), 0; });
}
int64_t log_read(const RowLog* log, const uint32_t* slots, int64_t n, int64_t* keys, char* rows) {
    return answered([&] { return log->read(slots, n, keys, rows), n; });
}

}  // extern "C"
