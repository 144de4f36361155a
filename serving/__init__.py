"""Rank, pre-rank and recommend servers, and their JSON front."""
