// Device functions of all operators of the feature language.
#pragma once
#include "casts.cuh"
#include "dictionary.cuh"
#include "division.cuh"
#include "features.cuh"
#include "json.cuh"
#include "keywords.cuh"
#include "lists.cuh"
#include "similarity.cuh"
#include "statistics.cuh"
#include "strings.cuh"
#include "text.cuh"
#include "transfer.cuh"
