// Calls of kernels/request/swap_lock.py.
#include "request/swap_lock.hpp"

#include <new>

using livectr::SwapLock;

extern "C" {

// Returns null without memory.
SwapLock* swap_lock_new(int64_t version, double longest_s) { return new (std::nothrow) SwapLock(version, longest_s); }
void swap_lock_delete(SwapLock* lock) { delete lock; }
bool swap_lock_try_read(SwapLock* lock) { return lock->try_read(); }
bool swap_lock_try_write(SwapLock* lock) { return lock->try_write(); }
bool swap_lock_read(SwapLock* lock, double deadline) { return lock->read(deadline); }
void swap_lock_end_read(SwapLock* lock) { lock->end_read(); }
void swap_lock_write(SwapLock* lock) { lock->write(); }
void swap_lock_end_write(SwapLock* lock) { lock->end_write(); }
void swap_lock_counts(SwapLock* lock, int64_t* counts) { lock->counts(counts); }
int64_t swap_lock_version(const SwapLock* lock) { return lock->version; }
void swap_lock_set_version(SwapLock* lock, int64_t version) { lock->version = version; }
}
