// Tables of every row layout, and moves of their rows.
#include "table/table_api.hpp"
#include "tiers/moves.hpp"
