"""Embedding tables of a rank: tiers over GPU, DRAM and SSD, admission and eviction."""
