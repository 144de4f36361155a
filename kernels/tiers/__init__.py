"""Kernels of tiers below DRAM: a log of rows on SSD, and moves of rows between it and tables."""
