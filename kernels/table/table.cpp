// Tables of every row layout, moves of their rows, and steps of small batches.
#include "network/small_steps.hpp"
#include "table/table_api.hpp"
#include "tiers/moves.hpp"
