"""Our answer without gRPC and clients: bytes of a request to bytes of its reply, in this process.

    python -m bench.serving.in_process REDIS_URL

Takes JSON lines. A request of `Request.json` gets the ranked ads and the milliseconds of its answer;
{"users": […]} has their look-up rows read; {"threads": n, "seconds": s} gets the requests a second of n
threads that answer at once, and the CPU seconds of a request.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.serving.ids import pipeline
from bench.serving.requests import Request, requests
from livectr.protos import livectr_pb2 as pb
from livectr.serving.calls import RequestCall
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.rank import Ranker
from livectr.system.heap import tune_malloc

WAIT_S = 60.0
Answer = Callable[[bytes], bytes]


def together(answer: Answer, threads: int, seconds: float) -> dict[str, float]:
    """Requests a second of several threads at once, and CPU seconds of a request."""
    messages = [request.message().SerializeToString() for request in requests(200, seed=7)]
    for message in messages:
        answer(message)
    counts = [0] * threads
    start = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        mine = itertools.cycle(messages[number::threads])
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            answer(next(mine))
            counts[number] += 1

    started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    start.wait()
    began, cpu_s = time.perf_counter(), time.process_time()
    for thread in started:
        thread.join()
    done = sum(counts)
    rate = done / (time.perf_counter() - began)
    return {"rate": rate, "cpu_s": (time.process_time() - cpu_s) / done}


def ranked(answer: Answer, asked: dict[str, Any]) -> dict[str, Any]:
    """Ranked ads of a request, and the milliseconds of its answer."""
    message = Request(**asked).message().SerializeToString()
    started = time.perf_counter()
    raw = answer(message)
    ms = (time.perf_counter() - started) * 1000
    reply = pb.RankResponse.FromString(raw)
    return {"index": list(reply.index), "pctr": list(reply.pctr), "ms": ms}


def read_users(answer: Answer, users: Sequence[int]) -> dict[str, Any]:
    """Have users' look-up rows read, so that answers find them in memory."""
    (request,) = requests(1)
    for user in users:
        context = request.context | {"user_id": user}
        answer(Request(context, request.ads, request.bids).message().SerializeToString())
    return {}


def main() -> None:
    torch.set_num_threads(1)
    tune_malloc()
    sys.setswitchinterval(0.0005)
    options = ServeOptions(sys.argv[1])
    follower = version_follower("rank", pipeline, options)
    follower.start()
    assert follower.wait_ready(WAIT_S)
    ranker = Ranker(pipeline, follower, options)

    def answer(raw: bytes) -> bytes:
        began = time.perf_counter()
        plain = None if ranker.plain is None else ranker.plain.answers.answer(raw, None, began, began)
        if plain is not None:
            return plain
        return ranker.rank(ranker.schema.reader.read(raw), RequestCall("rank", began=began)).serialized()

    print("ready on stdin", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "threads" in asked:
            found = together(answer, **asked)
        elif "users" in asked:
            found = read_users(answer, asked["users"])
        else:
            found = ranked(answer, asked)
        print(json.dumps(found), flush=True)
    follower.close()


if __name__ == "__main__":
    main()
