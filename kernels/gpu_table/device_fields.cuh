// The embedding front on a GPU: F fields over the tables of one index. As table/fields.hpp: keys are field-major and ragged,
// cell c has the keys keys[offsets[c] : offsets[c + 1]], whose values are summed.
#pragma once
#include "gpu_table/device_table.cuh"

// Place of a field: its first cell, its results (in units of D floats: base + row * stride), and its table.
struct FieldPlace {
    int64_t first, base, stride, table;
};

// Writes the table and the place of the result of every occurrence; an item per cell.
KERNEL(place_cells) {
    each(block, p.n, [&](int64_t cell) {
        int64_t low = 0, high = p.fields - 1;  // the last field that begins at the cell or before it
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (p.places[middle].first <= cell) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        const FieldPlace field = p.places[low];
        const int64_t place = field.base + (cell - field.first) * field.stride;
        p.cell_places[cell] = uint32_t(place);
        for (int32_t i = p.offsets[cell]; i < p.offsets[cell + 1]; ++i) {
            p.tables_out[i] = uint32_t(field.table);
            p.cells_out[i] = uint32_t(place);
        }
    });
}

// out: the values of each cell's keys, summed in their order; an item per part of a cell.
KERNEL(pool_cells) {
    each(block, p.n * Lanes::COUNT, [&](int64_t item) {
        const int64_t cell = item / Lanes::COUNT, part = item % Lanes::COUNT;
        Lanes::Part sum{};
        for (int32_t i = p.offsets[cell]; i < p.offsets[cell + 1]; ++i) {
            const Lanes::Part values = Lanes::read(p.slabs, p.rows[p.id_of[i]], part);
            if (i == p.offsets[cell]) {
                sum = values;
            } else {
                for (int lane = 0; lane < Lanes::WIDTH; ++lane) sum.values[lane] += values.values[lane];
            }
        }
        Lanes::write(p.out + int64_t(p.cell_places[cell]) * Layout::D, part, sum);
    });
}
