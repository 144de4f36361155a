// Calibration of a version's logits: a line for each segment, the key of one field of a row.
#pragma once
#include "request/features.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace livectr::request {

struct Calibration {
    bool shared = false;              // the field is one of the shared ones, else one of the rows' own
    int64_t place = -1;               // of the field among them; -1: there are no segments
    std::vector<int64_t> keys;        // of the segments, rising
    std::vector<float> scale, shift;  // of each segment, and last of other rows; empty: nothing is calibrated

    explicit operator bool() const { return !scale.empty(); }

    // Writes the line of each row of features that were extracted.
    void lines(const FeatureCall& of, float* to_scale, float* to_shift) const {
        const int64_t cells = place < 0 ? 0 : shared ? 1 : of.rows;
        const int32_t* const offsets = (shared ? of.shared_offsets : of.own_offsets) + (place < 0 ? 0 : place * cells);
        const int64_t* const all = shared ? of.shared_keys : of.own_keys;
        size_t line = keys.size();
        for (int64_t row = 0; row < of.rows; ++row) {
            if (row < cells) {
                const int64_t key = offsets[row] < offsets[row + 1] ? all[offsets[row]] : INT64_MIN;
                const auto found = std::lower_bound(keys.begin(), keys.end(), key);
                line = found != keys.end() && *found == key ? size_t(found - keys.begin()) : keys.size();
            }
            to_scale[row] = scale[line];
            to_shift[row] = shift[line];
        }
    }
};

}  // namespace livectr::request
