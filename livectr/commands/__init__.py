"""Commands in rooms, a file each: `add` gives a command its flags, `run` does it.

    start/    a first try on this machine: the demo, a pipeline file, a broker, a Redis
    logs/     write logs, and what is computed from them once
    run/      trainer, servers and their client
    measure/  show and measure: plans, checkpoints, models, LiveCTR itself

`livectr --help` imports all of these modules, so they import what is heavy (torch, pyarrow, rich) inside of
functions.
"""
