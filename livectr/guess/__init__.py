"""Guesses about logs that nobody prepared, for `livectr init`.

leaks     columns that are known only after the click
columns   facts about a column, and its use as a feature
roles     label, time, user and item among the columns
made      columns that are made of others: a label by a rule, a time of a date and a time of day
facts     all guesses about a log
raw       samples of raw logs: of files, or of Kafka topics
join_columns  columns that name an impression in two raw logs
delays    delays of clicks behind their impressions
pair      impressions and clicks in logs of their own
marked    impressions whose label is in a file of clicks without times
convert   the rows as a log that a pipeline reads
text      the pipeline file
init      everything in order
"""
