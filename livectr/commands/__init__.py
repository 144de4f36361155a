"""Commands, a file each: `add` gives a command its flags, `run` does it.

`livectr --help` imports all of these modules, so they import what is heavy (torch, pyarrow, rich) inside of
functions.
"""
