// Memory of the tables: address space now, pages when they are first written.
#pragma once
#include "shim.cuh"
#ifdef LIVECTR_HOST

#include <algorithm>
#include <new>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace {

// A zeroed block that never moves. `huge` asks for 2 MiB pages (fewer TLB misses on random rows); the
// first block of a table goes without, so that a small table stays small.
class Pages {
  public:
    Pages(int64_t bytes, bool huge) : bytes_(bytes + (huge ? HUGE_PAGE : 0)) {
        base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<char*>(base_);
        if (huge) {
            data_ += -reinterpret_cast<uintptr_t>(base_) % HUGE_PAGE;
            madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: without it everything still works
        }
    }
    Pages(Pages&& other) noexcept : base_(std::exchange(other.base_, MAP_FAILED)), data_(other.data_), bytes_(other.bytes_) {}
    Pages& operator=(Pages&&) = delete;
    ~Pages() {
        if (base_ != MAP_FAILED) munmap(base_, bytes_);
    }
    char* data() const { return data_; }

  private:
    static constexpr int64_t HUGE_PAGE = 2 << 20;
    void* base_;
    char* data_;
    int64_t bytes_;
};

}  // namespace

#endif
