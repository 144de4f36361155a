"""Commands, a file each: `add` gives a command its flags, `run` does it.

Folders are the groups of `livectr --help`:

    run/      trainer, servers, their client, local stand-ins for Kafka and Redis
    data/     a pipeline file, the logs, and what is made of them ahead of training
    watch/    show a pipeline, a checkpoint, what is published, the quality of a run
    develop/  variants of a model, the size of a deployment, LiveCTR's own speed

`livectr --help` imports all of these modules, so they import what is heavy (torch, pyarrow, rich) inside of
functions.
"""
