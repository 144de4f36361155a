"""Guesses about a log file that nobody prepared, for `livectr init`.

rows      a file's rows as Arrow batches: CSV, JSON lines, Parquet
times     columns that are times, and their units
columns   facts about a column, and its use as a feature
roles     label, time, user and item among the columns
facts     all guesses about a file
convert   the rows as a log that a pipeline reads
text      the pipeline file
init      everything in order
"""
