"""`livectr up`: the parts of a run on this machine, started, kept as they are to be, and ended in order."""
