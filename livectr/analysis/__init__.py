"""Quality of runs: evaluation of a log of predictions, comparison of two runs, plots."""
