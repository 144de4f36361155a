"""Size of a deployment before it exists: formulas over measured points. `livectr plan` prints it.

amounts     "1M/s", "1e10", "10Gbit/s" → numbers
model       fields, table row and network, from a pipeline file or flags
report      measures of the user's own run
points      measured points (points.json; `python -m bench.plan.points` takes them from bench/results)
distinct    distinct keys among draws after Zipf's law
figure      a figure with its formula and points; a size outside of what was measured
load        Kafka: bytes, partitions, brokers
trainer     ranks, bytes of a step by exchange, memory, checkpoints
store       Redis: bytes, nodes, rows that a version writes
serving     cores and memory of servers
deployment  all parts, machines and their cost, and where a plan leaves what was measured
show        tables on standard output, or JSON
"""
