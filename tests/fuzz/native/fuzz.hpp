// Frame of the harnesses. FUZZ_TARGET(name) { … } is the body for one input, `input`.
//
// A harness is compiled twice: alone with libFuzzer, where the body is its entry point, and with LIVECTR_REPLAY, where
// `replay.cpp` runs the bodies of all harnesses over files.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

// A condition that holds for every input; a sanitizer does not see it.
#define REQUIRE(condition)                                                                      \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                       \
        }                                                                                       \
    } while (false)

namespace fuzz {

// Bytes in memory of exactly their size, so that AddressSanitizer sees a read behind them.
struct Exact {
    std::unique_ptr<uint8_t[]> memory;
    int64_t size = 0;

    Exact(const uint8_t* from, int64_t bytes) : memory(new uint8_t[size_t(bytes)]), size(bytes) {
        if (bytes) std::memcpy(memory.get(), from, size_t(bytes));
    }
    const uint8_t* data() const { return memory.get(); }
};

// Input, taken from its front; behind its end numbers are 0 and pieces are empty.
class Input {
  public:
    Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

    bool empty() const { return at_ == end_; }
    int64_t left() const { return end_ - at_; }

    template <typename T>
    T number() {
        T value = 0;
        const int64_t size = std::min<int64_t>(left(), int64_t(sizeof value));
        if (size) std::memcpy(&value, at_, size_t(size));
        at_ += size;
        return value;
    }
    // Number below n, of one byte.
    int64_t below(int64_t n) { return number<uint8_t>() % n; }

    Exact piece(int64_t size) {
        size = std::min(size, left());
        at_ += size;
        return Exact(at_ - size, size);
    }
    Exact rest() { return piece(left()); }

    // Bytes up to a mark, which is dropped, or to the end.
    Exact until(uint8_t mark) {
        const uint8_t* const stop = std::find(at_, end_, mark);
        Exact found(at_, stop - at_);
        at_ = stop == end_ ? stop : stop + 1;
        return found;
    }

  private:
    const uint8_t *at_, *end_;
};

// Texts of an input, one a line, in exactly sized memory: text i is data[starts[i], stops[i]).
struct Lines {
    Exact data;
    std::vector<int64_t> starts, stops;

    explicit Lines(Exact text) : data(std::move(text)) {
        int64_t begin = 0;
        for (int64_t i = 0; i <= data.size; ++i) {
            if (i < data.size && data.data()[i] != '\n') continue;
            starts.push_back(begin), stops.push_back(i);
            begin = i + 1;
        }
    }
    int64_t count() const { return int64_t(starts.size()); }
};

using Body = void (*)(Input& input);

struct Registered {
    Registered(const char* name, Body body);
};

}  // namespace fuzz

#ifdef LIVECTR_REPLAY
#define FUZZ_TARGET(name)                                                \
    static void fuzz_##name(fuzz::Input& input);                         \
    static const fuzz::Registered registered_##name(#name, fuzz_##name); \
    static void fuzz_##name(fuzz::Input& input)
#else
#define FUZZ_TARGET(name)                                                     \
    static void fuzz_##name(fuzz::Input& input);                              \
    extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
        fuzz::Input input(data, size);                                        \
        fuzz_##name(input);                                                   \
        return 0;                                                             \
    }                                                                         \
    static void fuzz_##name(fuzz::Input& input)
#endif
