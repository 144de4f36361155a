// Lists of vectors of a request, pooled: content vectors by id and rows by key, read once for all rows that share them.
#pragma once
#include "keys/numbers.hpp"
#include "network/forward.hpp"
#include "network/pooling.hpp"
#include "request/look_up.hpp"

namespace {

using namespace livectr::request;
using livectr::forward::Source;
using livectr::pooling::Channel;
using livectr::pooling::List;
using livectr::pooling::Pooling;
using livectr::pooling::Query;

// A list as requests with the same shared fields have it: content vectors, or a sequence of the version's tables.
struct ListRead {
    FieldPlace field;
    int64_t sequence;        // -1: content
    const Numbers* numbers;  // id → row
    const float* matrix;     // [ids, width]
};

// Lists and queries of a network's pooling.
struct PooledReads {
    const Pooling* pooling = nullptr;  // null: the network has none
    std::vector<ListRead> lists;
    std::vector<FieldPlace> queries;

    int64_t channels() const { return pooling ? int64_t(pooling->channels.size()) : 0; }

    // Takes a pooling, whose sequences `tables` reads. numbers: sequences, as pairs (shared, place), after their count;
    // lists of (shared, place, sequence, numbers, matrix), of which a sequence has no last two, and content has sequence
    // -1; and queries of (shared, place).
    void read(const Pooling* of, const int64_t* numbers, VersionTables& tables) {
        const auto place = [&] {
            numbers += 2;
            return FieldPlace{numbers[-2] != 0, numbers[-1]};
        };
        for (int64_t left = *numbers++; left > 0; --left) tables.read_sequence(place());
        for (size_t l = 0; l < of->widths.size(); ++l, numbers += 3) {
            const FieldPlace field = place();
            lists.push_back({field, numbers[0], reinterpret_cast<const Numbers*>(numbers[1]),
                             reinterpret_cast<const float*>(numbers[2])});
        }
        for (int64_t i = 0; i < of->fields; ++i) queries.push_back(place());
        pooling = of;
    }
};

// Lists of a request, and their pooled vectors.
class PooledRequest {
  public:
    // given[lists]: vectors of each list that was read for the call; null, or null of a list: they are found.
    // most_pairs: of vectors of a shared list and rows that look at it.
    PooledRequest(const PooledReads& of, const FeatureCall& features, const float* const* given, int64_t most_pairs)
        : of_(of), features_(features), given_(given), most_pairs_(most_pairs), arena_(memory_of(features)) {}

    // Finds the keys of the lists. On TOO_MANY_PAIRS `list` is the one, of `listed` vectors.
    Outcome find_keys(int64_t& list, int64_t& listed) {
        const int64_t count = int64_t(of_.lists.size());
        keys_ = arena_.take<FieldKeys>(count);
        for (int64_t l = 0; l < count; ++l) {
            if (!livectr::request::find_keys(features_, of_.lists[size_t(l)].field, keys_[l])) return BAD_FEATURES;
            if (of_.lists[size_t(l)].field.shared && keys_[l].size() * features_.rows > most_pairs_) {
                list = l, listed = keys_[l].size();
                return TOO_MANY_PAIRS;
            }
        }
        return DONE;
    }

    // Keys of the sequences, and how many vectors they have.
    FieldKeys* sequences(const VersionTables& tables, int64_t& vectors) const {
        auto* const out = arena_.take<FieldKeys>(int64_t(tables.sequences.size()));
        vectors = 0;
        for (size_t l = 0; l < of_.lists.size(); ++l)
            if (of_.lists[l].sequence >= 0) {
                out[of_.lists[l].sequence] = keys_[l];
                vectors += keys_[l].size();
            }
        return out;
    }

    // Reads the lists' vectors. sequences[keys, dim]: rows of the sequences' keys, of which `width` values from `first`
    // on are read; null: they were given.
    Outcome read(const VersionTables& tables, const float* sequences, int64_t first) {
        const int64_t count = int64_t(of_.lists.size());
        lists_ = arena_.take<List>(count);
        auto* const places = arena_.take<int64_t>(int64_t(tables.sequences.size()) + 1);
        places[0] = 0;
        for (size_t s = 0; s < tables.sequences.size(); ++s)
            for (size_t l = 0; l < of_.lists.size(); ++l)
                if (of_.lists[l].sequence == int64_t(s)) places[s + 1] = places[s] + keys_[l].size();
        for (int64_t l = 0; l < count; ++l) {
            const ListRead& read = of_.lists[size_t(l)];
            const FieldKeys& keys = keys_[l];
            const int64_t width = of_.pooling->widths[size_t(l)];
            auto* const ends = arena_.take<int64_t>(keys.count + 1);
            for (int64_t i = 0; i <= keys.count; ++i) ends[i] = keys.offsets[i] - keys.offsets[0];
            const float* values = given_ ? given_[l] : nullptr;
            if (!values) {
                auto* const to = arena_.take<float>(keys.size() * width);
                if (read.sequence >= 0) {
                    if (!sequences) return BAD_FEATURES;
                    const float* const rows = sequences + places[read.sequence] * tables.dim + first;
                    for (int64_t i = 0; i < keys.size(); ++i) std::copy_n(rows + i * tables.dim, width, to + i * width);
                } else if (!find_content(read, keys, width, to)) {
                    return MISSING_CONTENT;
                }
                values = to;
            }
            lists_[l] = {values, ends, read.field.shared};
        }
        return DONE;
    }

    // Pools all channels, whose sources have the numbers from `number` on: those that all rows share are added to
    // `shared`, the others to `own`. own, shared: vectors [.., dim], of which a query's begin at value `first`.
    Outcome pool(const VersionTables& tables, const float* own_vectors, const float* shared_vectors, int64_t first,
                 double deadline, int32_t number, Source*& own, Source*& shared) {
        const Pooling& pooling = *of_.pooling;
        auto* const queries = arena_.take<Query>(int64_t(of_.queries.size()));
        for (size_t i = 0; i < of_.queries.size(); ++i) {
            const FieldPlace place = of_.queries[i];
            queries[i] = {(place.shared ? shared_vectors : own_vectors) + place.place * tables.dim + first,
                          place.shared ? 0 : tables.own * tables.dim, place.shared};
        }
        for (const Channel& channel : pooling.channels) {
            const bool once = is_shared(channel, lists_, queries);
            const int64_t rows = once ? 1 : features_.rows, step = rows_at_once(channel);
            auto* const out = arena_.take<float>(rows * channel.width);
            auto* const scratch = arena_.take<float>(livectr::pooling::scratch(pooling, channel, std::min(step, rows)));
            for (int64_t row = 0; row < rows; row += step) {
                if (row && livectr::SwapLock::seconds() > deadline) return EXPIRED;
                livectr::pooling::pool(pooling, channel, lists_, queries, row, std::min(step, rows - row), scratch,
                                       out + row * channel.width);
            }
            (*(once ? shared : own)++) = {out, channel.width, number++};
        }
        return DONE;
    }

  private:
    static constexpr int64_t PAIRS = 1 << 16;  // of a vector and a row, between two looks at the clock

    const PooledReads& of_;
    const FeatureCall& features_;
    const float* const* const given_;
    const int64_t most_pairs_;
    Arena& arena_;
    FieldKeys* keys_ = nullptr;
    List* lists_ = nullptr;

    // Gathers the vectors of ids; false if one has none.
    bool find_content(const ListRead& read, const FieldKeys& keys, int64_t width, float* to) const {
        constexpr int64_t PART = 256;
        uint32_t rows[PART];
        const int64_t* const ids = keys.keys + keys.offsets[0];
        for (int64_t begin = 0; begin < keys.size(); begin += PART) {
            const int64_t count = std::min(PART, keys.size() - begin);
            find_rows(read.numbers->index.view(), ids + begin, count, rows);
            for (int64_t i = 0; i < count; ++i) {
                if (rows[i] == NO_ROW) return false;
                to = std::copy_n(read.matrix + int64_t(rows[i]) * width, width, to);
            }
        }
        return true;
    }

    int64_t rows_at_once(const Channel& channel) const {
        if (!channel.unit || !lists_[channel.list].shared) return std::max<int64_t>(features_.rows, 1);
        return std::max<int64_t>(PAIRS / (lists_[channel.list].offsets[1] + 1), 1);
    }
};

}  // namespace
