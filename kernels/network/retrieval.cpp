// flags: -ffp-contract=fast
// Inner products of a query with rows of a matrix on the host, and the best k of them: pre-rank and retrieval.
//
// Order: greatest score first, NaN last, equal scores by position. A score and its position are one 64-bit word whose
// order is that order, so that a selection compares integers.
//
// A sum runs over its terms in an order that depends on the width alone: equal rows have equal bits wherever they lie.
#include "network/retrieval.hpp"

#include "keys/numbers.hpp"
#include "runtime/threads.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace livectr::retrieval {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr int64_t CHUNK = 16'384;  // rows of a matrix that a thread scans at a time
constexpr int64_t LINE = 64;       // bytes of a line of the cache

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }

// Lane l is v[l] + v[l ^ W] of v = a where bit W of l is 0, else of v = b.
template <int W, int... L>
inline Vec folded(Vec a, Vec b, std::integer_sequence<int, L...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (L & W ? LANES + L : L)...) +
           __builtin_shufflevector(a, b, (L & W ? LANES + (L ^ W) : L ^ W)...);
#else
    return __builtin_shuffle(a, b, Ints{(L & W ? LANES + L : L)...}) +
           __builtin_shuffle(a, b, Ints{(L & W ? LANES + (L ^ W) : L ^ W)...});
#endif
}

// Lane r of the result is the sum of the lanes of sums[r], added as a tree.
template <int W = LANES / 2>
inline Vec across(Vec (&sums)[LANES]) {
    for (int i = 0; i < W; ++i) sums[i] = folded<W>(sums[i], sums[i + W], std::make_integer_sequence<int, LANES>{});
    if constexpr (W == 1) return sums[0];
    else return across<W / 2>(sums);
}

// Query: a vector of `dim` numbers, which zeros fill up to whole registers, and the bias of every score.
class Query {
  public:
    const int64_t dim;

    Query(const float* vector, int64_t dim, float bias)
        : dim(dim), bias_(bias), vector_(size_t((dim + LANES - 1) / LANES * LANES)) {
        std::copy_n(vector, dim, vector_.begin());
    }

    // Scores of LANES rows.
    Vec scores(const float* const* rows) const {
        const int64_t whole = dim / LANES * LANES;
        Vec sums[LANES];
        for (int r = 0; r < LANES; ++r) {
            Vec sum = {};
            for (int64_t k = 0; k < whole; k += LANES) sum += load(rows[r] + k) * load(&vector_[size_t(k)]);
            if (whole < dim) {
                Vec rest = {};
                std::memcpy(&rest, rows[r] + whole, size_t(4 * (dim - whole)));
                sum += rest * load(&vector_[size_t(whole)]);
            }
            sums[r] = sum;
        }
        return across(sums) + bias_;
    }

  private:
    const float bias_;
    std::vector<float> vector_;
};

// 32 bits in the order of the scores: 0 for NaN, and the same for both zeros.
inline uint32_t key_of(float score) {
    if (score != score) return 0;
    uint32_t bits;
    score += 0.0f;  // −0 → 0
    std::memcpy(&bits, &score, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

inline float score_of(uint32_t key) {
    const uint32_t bits = key ? key >> 31 ? key & 0x7FFFFFFF : ~key : 0x7FC00000;
    float score;
    std::memcpy(&score, &bits, 4);
    return score;
}

inline uint64_t word_of(float score, uint32_t position) {
    return uint64_t{key_of(score)} << 32 | (~position & 0xFFFFFFFF);
}

// Selection of the best k of the scores that it is offered, or of the best of several selections.
class Best {
  public:
    explicit Best(size_t k) : k_(k) {}

    // Scores below `least` are refused, and NaN with them; nothing is refused while `open`.
    bool open = true;
    float least = 0;

    void add(uint64_t word) {
        words_.push_back(word);
        if (words_.size() >= 2 * k_ + LANES) shrink();
    }

    void add_all(const Best& other) {
        for (const uint64_t word : other.words_) add(word);
    }

    // Refuses scores below that of a key. Raises the bound, and never lowers it.
    void raise(uint32_t key) {
        if (key && (open || score_of(key) > least)) open = false, least = score_of(key);
    }

    // Drops all but the best k. Returns the key of the worst of k, or 0.
    uint32_t shrink() {
        if (words_.size() < k_) return 0;
        std::nth_element(words_.begin(), words_.begin() + ptrdiff_t(k_ - 1), words_.end(), std::greater<>());
        words_.resize(k_);
        const uint32_t key = static_cast<uint32_t>(words_.back() >> 32);
        raise(key);
        return key;
    }

    // Writes positions and scores, best first. Returns their number.
    int64_t write(int64_t* positions, float* scores) {
        shrink();
        std::sort(words_.begin(), words_.end(), std::greater<>());
        for (size_t i = 0; i < words_.size(); ++i) {
            positions[i] = static_cast<uint32_t>(~words_[i]);
            scores[i] = score_of(static_cast<uint32_t>(words_[i] >> 32));
        }
        return static_cast<int64_t>(words_.size());
    }

  private:
    const size_t k_;
    std::vector<uint64_t> words_;
};

// Offers `count` scores from `position` on, but those of the positions for which `skip` is true.
template <typename Skip>
inline void offer(Best& best, Vec scores, int count, int64_t position, Skip&& skip) {
    if (!best.open) {
        const Ints above = scores >= best.least;
        bool any = false;
        for (int l = 0; l < LANES; ++l) any |= above[l] != 0;
        if (!any) return;
    }
    for (int l = 0; l < count; ++l) {
        const float score = scores[l];
        if ((best.open || score >= best.least) && !skip(position + l))
            best.add(word_of(score, static_cast<uint32_t>(position + l)));
    }
}

// Sorts words[n], which are in the order of their positions, by their scores: a stable radix sort, least byte first.
// other[n] is memory. Returns where of the two they are.
inline uint64_t* sorted(uint64_t* words, uint64_t* other, int64_t n) {
    uint32_t places[4][256] = {};
    for (int64_t i = 0; i < n; ++i)
        for (int b = 0; b < 4; ++b) ++places[b][~words[i] >> (32 + 8 * b) & 255];
    for (int b = 0; b < 4; ++b) {
        uint32_t* const place = places[b];
        if (n && place[~words[0] >> (32 + 8 * b) & 255] == n) continue;  // all have the same byte
        uint32_t start = 0;
        for (int v = 0; v < 256; ++v) start += std::exchange(place[v], start);
        for (int64_t i = 0; i < n; ++i) other[place[~words[i] >> (32 + 8 * b) & 255]++] = words[i];
        std::swap(words, other);
    }
    return words;
}

// Best k of scores[n], best first → positions, best. A histogram of the scores says in which of its parts the last of
// the best is; only that part is searched. No branch depends on a score: half of them would be guessed wrong.
inline void select(const float* scores, int64_t n, int64_t k, int64_t* positions, float* best) {
    constexpr int PARTS = 2048;
    std::vector<uint64_t> memory(static_cast<size_t>(2 * n + 2));
    uint64_t *const words = memory.data(), *const other = words + n + 1;
    uint32_t least = UINT32_MAX, most = 0;
    for (int64_t i = 0; i < n; ++i) {
        words[i] = word_of(scores[i], static_cast<uint32_t>(i));
        const uint32_t key = static_cast<uint32_t>(words[i] >> 32);
        least = std::min(least, key), most = std::max(most, key);
    }
    int64_t count = n;
    if (k < n) {
        int shift = 0;
        while ((most - least) >> shift >= PARTS) ++shift;
        const auto part_of = [&](uint64_t word) { return (static_cast<uint32_t>(word >> 32) - least) >> shift; };
        uint32_t sizes[PARTS] = {};
        for (int64_t i = 0; i < n; ++i) ++sizes[part_of(words[i])];
        uint32_t part = PARTS;
        int64_t above = 0;  // words in the parts above `part`, then with those in it
        while (above < k) above += sizes[--part];
        int64_t inside = 0;
        for (int64_t i = 0; i < n; ++i) {
            other[inside] = words[i];
            inside += part_of(words[i]) == part;
        }
        uint64_t* const last = other + (k - (above - inside) - 1);
        std::nth_element(other, last, other + inside, std::greater<>());
        const uint64_t bound = *last;
        count = 0;
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t word = words[i];
            words[count] = word;
            count += word >= bound;
        }
    }
    const uint64_t* const order = sorted(words, other, count);
    for (int64_t i = 0; i < count; ++i) {
        positions[i] = static_cast<uint32_t>(~order[i]);
        best[i] = score_of(static_cast<uint32_t>(order[i] >> 32));
    }
}

// Value of a row with a worth: worth * logistic(score).
inline float value_of(double worth, float score) { return float(worth / (1.0 + std::exp(-double(score)))); }

// Upper bounds of the values. logistic(z) < e^z, and the chord between powers of two lies above e^z: its float has
// z * 2^23 / ln 2 as its bits.
inline Vec bounds(Vec worths, Vec scores) {
    constexpr float MOST = 80;
    const Vec low = scores > -MOST ? scores : Vec{} - MOST, z = low < MOST ? low : Vec{} + MOST;
    const Ints bits = __builtin_convertvector(z * 12102203.2f, Ints) + (127 << 23);
    Vec chord;
    std::memcpy(&chord, &bits, sizeof(chord));
    const Vec sure = chord * 1.0001f;
    return worths * (sure < 1.0f ? sure : Vec{} + 1.0f) * 1.0001f;
}

// Offers the values of rows with worths, as `offer` does scores. Few are computed: the bounds refuse the others.
template <typename Skip>
inline void offer_values(Best& best, Vec worths, Vec scores, int count, int64_t position, Skip&& skip) {
    const Vec most = bounds(worths, scores);
    for (int l = 0; l < count; ++l) {
        if (!best.open && most[l] < best.least) continue;
        const float value = value_of(worths[l], scores[l]);
        if ((best.open || value >= best.least) && !skip(position + l))
            best.add(word_of(value, static_cast<uint32_t>(position + l)));
    }
}

// Scores of rows [first, last) of a matrix that are not excluded, or their values, with worths of all rows; excluded:
// ascending numbers of rows.
inline void scan(const Query& query, const float* matrix, int64_t first, int64_t last, const uint32_t* excluded,
                 const uint32_t* end, const float* worths, Best& best) {
    const uint32_t* next = std::lower_bound(excluded, end, first);
    const auto skip = [&](int64_t row) {
        while (next != end && *next < row) ++next;
        return next != end && *next == row;
    };
    const float* rows[LANES];
    for (int64_t row = first; row < last; row += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, last - row));
        for (int r = 0; r < LANES; ++r) rows[r] = matrix + (row + std::min(r, count - 1)) * query.dim;
        if (!worths) {
            offer(best, query.scores(rows), count, row, skip);
            continue;
        }
        Vec own = {};
        std::memcpy(&own, worths + row, size_t(4 * count));
        offer_values(best, own, query.scores(rows), count, row, skip);
    }
}

// Scores of some rows of a matrix.
inline void score_rows(const Query& query, const float* matrix, const int64_t* positions, int64_t n, float* scores) {
    const float* rows[LANES];
    for (int64_t first = 0; first < n; first += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, n - first));
        for (int r = 0; r < LANES; ++r) rows[r] = matrix + positions[first + std::min(r, count - 1)] * query.dim;
        const Vec found = query.scores(rows);
        for (int r = 0; r < count; ++r) scores[first + r] = found[r];
    }
}

// Fetches the lines of a row, which may begin within a line.
inline void fetch(const float* row, int64_t dim) {
    for (int64_t k = 0; k < dim; k += LINE / 4) prefetch(row + k);
    prefetch(row + dim - 1);
}

// Rows[n] of keys[n] and their scores[n]. An unknown key has NO_ROW, and the next of the vectors `cold`; without them
// NaN. Returns the number of unknown keys. While a block is scored, the rows of the next are on their way from memory,
// and so are the slots of the index of the block after it.
inline int64_t find(const Query& query, const IndexView& index, const int64_t* keys, int64_t n, const float* matrix,
                    const float* cold, uint32_t* rows, float* scores) {
    const std::vector<float> zeros(static_cast<size_t>(query.dim));
    int64_t unknown = 0;
    const Slot* slots[2][LANES];
    uint32_t homes[2][LANES];
    const int64_t blocks = (n + LANES - 1) / LANES;
    for (int64_t block = -2; block < blocks; ++block) {
        for (int64_t i = (block + 2) * LANES; i < std::min(n, (block + 3) * LANES); ++i) {
            const uint64_t hash = index_hash(index, keys[i]);
            slots[block & 1][i % LANES] = segment_of(index, hash)->slots;
            homes[block & 1][i % LANES] = home_slot(hash);
            prefetch(slots[block & 1][i % LANES] + homes[block & 1][i % LANES]);
        }
        for (int64_t i = std::max<int64_t>(0, (block + 1) * LANES); i < std::min(n, (block + 2) * LANES); ++i) {
            const Slot* const segment = slots[(block + 1) & 1][i % LANES];
            rows[i] = segment[probe(segment, keys[i], homes[(block + 1) & 1][i % LANES])].row;
            if (rows[i] != NO_ROW) fetch(matrix + int64_t{rows[i]} * query.dim, query.dim);
        }
        if (block < 0) continue;
        const int64_t first = block * LANES;
        const int count = static_cast<int>(std::min<int64_t>(LANES, n - first));
        const float* at[LANES];
        for (int r = 0; r < LANES; ++r) {
            const uint32_t row = rows[first + std::min(r, count - 1)];
            at[r] = row != NO_ROW ? matrix + int64_t{row} * query.dim : zeros.data();
            if (row == NO_ROW && r < count && cold) at[r] = cold + unknown++ * query.dim;
        }
        const Vec found = query.scores(at);
        for (int r = 0; r < count; ++r) scores[first + r] = found[r];
        for (int r = 0; r < count && !cold; ++r)
            if (rows[first + r] == NO_ROW) scores[first + r] = NAN, ++unknown;
    }
    return unknown;
}

}  // namespace livectr::retrieval

extern "C" {

int64_t retrieval_scan(const float* matrix, int64_t n, int64_t dim, const float* vector, float bias,
                       const uint32_t* excluded, int64_t m, const float* worths, int64_t k, int64_t* positions,
                       float* best, float* values) {
    using namespace livectr::retrieval;
    try {
        const Query query(vector, dim, bias);
        Best all(static_cast<size_t>(k));
        std::mutex lock;
        uint32_t bound = 0;  // key of the worst of k rows: rows below it are in no result
        livectr::parallel_chunks(n, CHUNK, [&](int64_t first, int64_t last) {
            Best own(static_cast<size_t>(k));
            {
                std::lock_guard<std::mutex> held(lock);
                own.raise(bound);
            }
            scan(query, matrix, first, last, excluded, excluded + m, worths, own);
            std::lock_guard<std::mutex> held(lock);
            all.add_all(own);
            bound = std::max(bound, all.shrink());
        });
        const int64_t found = all.write(positions, worths ? values : best);
        if (worths) score_rows(query, matrix, positions, found, best);
        return found;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int64_t retrieval_find(const void* numbers, const int64_t* keys, int64_t n, const float* matrix, const float* cold,
                       int64_t dim, const float* vector, float bias, const RetrievalWorths* worths, int64_t k,
                       uint32_t* rows, float* scores, int64_t* positions, float* best, float* values) {
    using namespace livectr::retrieval;
    try {
        const IndexView index = static_cast<const Numbers*>(numbers)->index.view();
        const int64_t unknown = find(Query(vector, dim, bias), index, keys, n, matrix, cold, rows, scores);
        if (unknown && !cold) return unknown;
        if (!worths->bids && !worths->rows) {
            select(scores, n, k, positions, best);
            return unknown;
        }
        std::vector<float> all(static_cast<size_t>(n));
        for (int64_t i = 0, next = 0; i < n; ++i) {
            const int64_t at = rows[i] == NO_ROW ? next++ : int64_t{rows[i]};
            const double worth = worths->bids        ? worths->bids[i]
                                 : rows[i] == NO_ROW ? worths->cold[at]
                                                     : worths->rows[at];
            all[size_t(i)] = value_of(worth, scores[i]);
        }
        select(all.data(), n, k, positions, values);
        for (int64_t i = 0; i < std::min(k, n); ++i) best[i] = scores[positions[i]];
        return unknown;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
}
