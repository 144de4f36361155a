"""Clients that no server likes: no deadline, absurd deadlines, cancelled calls, large and broken requests.

    python -m tests.faults.bad_clients --rank HOST:PORT --prerank HOST:PORT

Prints a JSON line of status codes by kind of client about every second, and a last one when SIGTERM tells it
to stop. INTERNAL and UNKNOWN are faults of the server, whatever the client did.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb
from livectr.protos import livectr_pb2_grpc as rpc
from livectr.simulator.records import CONTEXTS
from livectr.simulator.truth import PAGES

PATIENT_CLIENTS = 6
"""Clients without a deadline; more than a server answers at once."""
PAUSE_S = 0.2
ASIDE_S = 2.0
"""Between two large requests, so that good clients are answered as well."""


def rank_request(ads: int, **context: Any) -> Any:
    """A rank request for `ads` candidates; `context` replaces columns of a sound one."""
    columns = {"user_id": 1, "context": CONTEXTS[0], "page": PAGES[0], "query": "", "position": 0} | context
    return pb.RankRequest(
        context=[column_of(name, [value]) for name, value in columns.items()],
        candidates=[column_of("ad_id", list(range(1, ads + 1)))],
    )


class BadClients:
    """One thread for each kind of bad client."""

    def __init__(self, rank: str, prerank: str) -> None:
        self.codes: dict[str, Counter[str]] = {}
        self.stopping = threading.Event()
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(rank, unlimited)
        self._rank = rpc.RankStub(self._channel)  # type: ignore[no-untyped-call]
        self._prerank = rpc.PreRankStub(grpc.insecure_channel(prerank, unlimited))  # type: ignore[no-untyped-call]
        kinds: list[tuple[str, float, Callable[[], Any]]] = [
            *((f"no deadline {i}", PAUSE_S, self._no_deadline) for i in range(PATIENT_CLIENTS)),
            ("tiny deadline", PAUSE_S, lambda: self._rank.Rank(rank_request(100), timeout=1e-3)),
            ("huge deadline", PAUSE_S, lambda: self._rank.Rank(rank_request(100), timeout=1e9)),
            ("cancelled", PAUSE_S, self._cancelled),
            ("long string", ASIDE_S, lambda: self._large(context="x" * 430_000)),
            ("deep JSON", ASIDE_S, lambda: self._large(context="[" * 100_000)),
            ("many words", ASIDE_S, lambda: self._large(query="shoe " * 16_000)),
            ("bytes", PAUSE_S, self._bytes),
            ("top_k", PAUSE_S, lambda: self._top_k(random.choice((0, 2**31 - 1, 2**32 - 1)))),
        ]
        self._threads = [threading.Thread(target=self._go, args=kind, daemon=True) for kind in kinds]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def summary(self) -> dict[str, Any]:
        codes = {kind: dict(found) for kind, found in self.codes.items()}
        faults = sum(found.get("INTERNAL", 0) + found.get("UNKNOWN", 0) for found in codes.values())
        return {"faults": faults, "codes": codes}

    def _go(self, kind: str, pause_s: float, call: Callable[[], Any]) -> None:
        found = self.codes.setdefault(kind, Counter())
        while not self.stopping.wait(pause_s):
            try:
                call()
                found["OK"] += 1
            except grpc.RpcError as error:
                found[error.code().name] += 1
            except grpc.FutureCancelledError:
                found["CANCELLED"] += 1

    def _no_deadline(self) -> Any:
        return self._rank.Rank(rank_request(300))

    def _cancelled(self) -> Any:
        future = self._rank.Rank.future(rank_request(400), timeout=5)
        time.sleep(random.random() * 0.02)
        future.cancel()
        return future.result()

    def _large(self, **context: Any) -> Any:
        return self._rank.Rank(rank_request(10_000, **context), timeout=30)

    def _bytes(self) -> Any:
        call = self._channel.unary_unary("/livectr.v1.Rank/Rank")
        return call(random.randbytes(200), timeout=5)

    def _top_k(self, k: int) -> Any:
        request = pb.PreRankRequest(
            context=[column_of("user_id", [1]), column_of("context", [CONTEXTS[0]])], top_k=k
        )
        return self._prerank.PreRank(request, timeout=5)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", required=True)
    parser.add_argument("--prerank", required=True)
    given = parser.parse_args()
    clients = BadClients(given.rank, given.prerank)
    signal.signal(signal.SIGTERM, lambda *_: clients.stopping.set())
    clients.start()
    while not clients.stopping.wait(1):
        print(json.dumps(clients.summary()), flush=True)
    print(json.dumps(clients.summary()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
