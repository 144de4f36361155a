"""Flame graphs: where the time of a benchmark's work goes, with C++ and torch below Python.

    python -m bench.flames [NAME...]

draws docs/flame-NAME.svg, of all works or some (`works.WORKS`).

works     what is drawn
rank      process that works until it is ended
flame     py-spy's samples, and their picture
"""
