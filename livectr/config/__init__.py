"""Settings of all processes: the table, parsing of values, and the four sources they are read from.

A process resolves its settings once, at entry (`livectr.config.sources.resolve`).
"""
