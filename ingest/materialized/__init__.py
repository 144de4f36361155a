"""Materialized features: computed once, stored as Parquet, read by every training run."""
