// Demand-paged memory of the tables: address space is reserved, pages come with the first write.
#pragma once
#include "runtime/shim.cuh"
#ifdef LIVECTR_HOST

#include <algorithm>
#include <atomic>
#include <new>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace {

// A zeroed block that never moves. It may ask for 2 MiB pages: fewer TLB misses on random rows. A table's first block
// does without. So a small table stays small, and hundreds of tables do not clear a whole page each for a few rows.
// Such blocks begin at scattered cache lines: tens of small tables at the same place of a page would take turns in the
// same sets of the caches.
class Pages {
  public:
    static constexpr int64_t HUGE_PAGE = 2 << 20, LINE = 64;

    Pages(int64_t bytes, bool huge) : bytes_(bytes + HUGE_PAGE) {
        base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED) throw std::bad_alloc();
        if (!huge) {
            static std::atomic<uint32_t> count{0};
            constexpr uint32_t GOLDEN = 2654435769u;  // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
            data_ = static_cast<char*>(base_) + count++ * GOLDEN % (HUGE_PAGE / LINE) * LINE;
            return;
        }
        data_ = static_cast<char*>(base_) + -reinterpret_cast<uintptr_t>(base_) % HUGE_PAGE;
        madvise(data_, bytes, MADV_HUGEPAGE);  // a hint: everything works without it
    }
    Pages(Pages&& other) noexcept
        : base_(std::exchange(other.base_, MAP_FAILED)), data_(other.data_), bytes_(other.bytes_) {}
    Pages& operator=(Pages&&) = delete;
    ~Pages() {
        if (base_ != MAP_FAILED) munmap(base_, bytes_);
    }
    char* data() const { return data_; }

  private:
    void* base_;
    char* data_;
    int64_t bytes_;
};

}  // namespace

#endif
