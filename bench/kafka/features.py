"""Read the topics through joins and features: `python -m bench.kafka.features kafka://HOST:PORT`.

It prints events a second, of all cores.
"""

from __future__ import annotations

import sys

from bench.features import display_ads
from bench.ingest import read


def main() -> None:
    events, seconds = read(display_ads(), sys.argv[1], features=True)
    print(events / seconds)


if __name__ == "__main__":
    main()
