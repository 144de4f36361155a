// Keys of an exchange. Decoder: a header and bytes of another rank give keys with rising offsets, or are refused.
// Encoder: what it writes is decoded to what it was.
#include "fuzz.hpp"
#include "keys/key_codec.cpp"

namespace {

constexpr int64_t MOST = 1 << 12;  // keys and cells of an input: a header may ask for 2^27, which takes a GB

void decode(fuzz::Input& input) {
    const int64_t word = input.number<int64_t>();
    const int64_t cells = input.number<uint8_t>();
    int64_t keys, bytes;
    key_bytes(&word, &cells, 1, &keys, &bytes);
    if (keys > MOST || bytes < 0 || bytes > input.left()) {
        REQUIRE(bytes >= 0);
        return;  // as trainer/comm/key_codec.py: the segment does not lie in its message
    }
    const fuzz::Exact message = input.piece(bytes);
    const auto found = std::make_unique<int64_t[]>(size_t(keys));
    const auto offsets = std::make_unique<int32_t[]>(size_t(cells));
    const CodedSegment segment{word, message.data(), cells, found.get(), offsets.get(), 5};
    if (decode_keys(&segment, 1) != 0) return;
    for (int64_t c = 0; c < cells; ++c) {
        const int64_t next = c + 1 < cells ? offsets[size_t(c + 1)] : 5 + keys;
        REQUIRE(offsets[size_t(c)] >= 5 && offsets[size_t(c)] <= next);
    }
}

void encode(fuzz::Input& input) {
    const int64_t plain = input.below(2), spread = input.below(4), cells = input.below(32);
    std::vector<int32_t> offsets(1, 0);
    for (int64_t c = 0; c < cells; ++c) offsets.push_back(offsets.back() + int32_t(input.below(spread ? 9 : 2)));
    std::vector<int64_t> keys;
    for (int32_t i = 0; i < offsets.back(); ++i) {
        const int64_t key = spread == 0   ? input.number<int8_t>()
                            : spread == 1 ? input.number<int32_t>()
                                          : input.number<int64_t>();
        keys.push_back(spread == 3 && i > 0 && key % 2 ? keys[size_t(i / 2)] : key);
    }
    const KeySegment segment{keys.data(), offsets.data(), cells, plain};
    int64_t header, ends[2];
    std::vector<uint8_t> out(size_t(keys_capacity(&segment, 1)));
    REQUIRE(encode_keys(&segment, 1, &header, ends, out.data()) == 0);
    int64_t count, bytes;
    key_bytes(&header, &cells, 1, &count, &bytes);
    REQUIRE(count == int64_t(keys.size()) && bytes == ends[1] && bytes <= int64_t(out.size()));
    const fuzz::Exact message(out.data(), bytes);
    std::vector<int64_t> found(keys.size());
    std::vector<int32_t> places(static_cast<size_t>(cells));
    const CodedSegment coded{header, message.data(), cells, found.data(), places.data(), 0};
    REQUIRE(decode_keys(&coded, 1) == 0 && found == keys);
    REQUIRE(std::equal(places.begin(), places.end(), offsets.begin()));
}

}  // namespace

FUZZ_TARGET(key_codec) {
    if (input.below(2)) encode(input);
    else decode(input);
}
