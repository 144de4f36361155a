"""Read the topics by our source: `python -m bench.kafka.decode kafka://HOST:PORT`. Prints events a second."""

from __future__ import annotations

import sys

from bench.features import display_ads
from bench.kafka.one_core import rate
from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.sources.source import open_source


def main() -> None:
    url = sys.argv[1]
    streams = display_ads().streams
    source = open_source(url, streams, until_end=True, dead_letters=DeadLetters(None))
    places = [(topic, partition) for topic, partitions in source.topics().items() for partition in partitions]
    source.assign(dict.fromkeys(places, BEGINNING))

    def read() -> int:
        source.start()
        count = 0
        while not all(source.at_end(*place) for place in places):
            count += sum(map(len, source.poll(0.1)))
        return count + sum(map(len, source.poll(0)))

    print(rate(read))
    source.close()


if __name__ == "__main__":
    main()
