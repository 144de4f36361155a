"""Check of a pipeline on some rows of its log, for `livectr check`.

sample    rows of the log, through decoding, joins and features
rules     what is right, doubtful or wrong about them, each with a sentence that says what to change
show      table and JSON
"""
