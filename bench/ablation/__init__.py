"""Ablations: variants of a model on the same log, and the tables of DICM §7 (`livectr experiment ablate`).

grids ─► runs ─► jobs: a process each ─► child: train, measure ─► results ─► tables, figures
"""
