// Device functions of all operators of the feature language.
#pragma once
#include "operators/casts.cuh"
#include "operators/dictionary.cuh"
#include "operators/division.cuh"
#include "operators/features.cuh"
#include "operators/json.cuh"
#include "operators/keywords.cuh"
#include "operators/lists.cuh"
#include "operators/similarity.cuh"
#include "operators/statistics.cuh"
#include "operators/strings.cuh"
#include "operators/text.cuh"
#include "operators/transfer.cuh"
