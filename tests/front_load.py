"""Hostile load on the native front: python -m tests.front_load [--seconds 600] [--sanitize thread|address].

Servers start and stop in one process, again and again and at random moments, while a second process does what
clients do, and what they should not: hits, misses, mistakes, cancelled calls, short deadlines, calls that the
front passes on, connections that say nothing, half a message, noise, floods of pings and resets, clients that
never read. Plain replies must be those of Python's stages, bit for bit. With `--sanitize` the front and the
kernels are compiled with a sanitizer, and the first report ends the run. The command exits with 1 if a reply
is wrong, or a status that nobody asked for came.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from tests.sanitizers import KINDS, compile_library, environment
from tests.serving import raw_http2 as raw
from tests.serving.certificates import Authority
from tests.serving.display_requests import ADS, CONTEXT
from tests.serving.display_world import World
from tests.serving.plain_pipeline import plain_request
from tests.serving.plain_towers import EVERY, PRERANK, prerank_request, publish_towers, towers

ROOT = Path(__file__).parents[1]
RANK = "/livectr.v1.Rank/Rank"
CORPUS = ROOT / "tests/fuzz/corpus"
PLAIN: dict[str, tuple[bytes, type[pb.RankResponse] | type[pb.PreRankResponse]]] = {
    RANK: (plain_request(), pb.RankResponse),
    PRERANK: (prerank_request(), pb.PreRankResponse),
}
"""Path of a method → its plain request, and the class of its replies."""
Code = grpc.StatusCode
ENDED = {Code.UNAVAILABLE, Code.CANCELLED}
"""Statuses of calls while the server stops."""
ALLOWED: dict[str, set[grpc.StatusCode]] = {
    "hits": {Code.RESOURCE_EXHAUSTED},
    "misses": {Code.RESOURCE_EXHAUSTED},
    "mistakes": {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION},
    "cancelled": {Code.RESOURCE_EXHAUSTED},
    "deadlines": {Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED},
    "large": {Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT},
    "passed": {Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED, Code.NOT_FOUND, Code.DEADLINE_EXCEEDED},
}


class Clients:
    """Clients of a server for some seconds.

    Args:
        address: of the server.
        authority: of its certificate; None: without TLS.
        expected: replies to the plain requests of `PLAIN`, without their version, by the path of the method.

    Attributes:
        ending: the server stops; before, no call may be lost.
    """

    def __init__(self, address: str, authority: bytes | None, expected: dict[str, bytes]) -> None:
        self._address, self._authority, self._expected = address, authority, expected
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ending = threading.Event()
        self._over = threading.Event()

    def run(self, count: int, seconds: float, seed: int) -> None:
        """Run some clients at once."""
        rng = random.Random(seed)
        calls = [
            self.hits,
            self.misses,
            self.mistakes,
            self.cancelled,
            self.deadlines,
            self.large,
            self.passed,
        ]
        hostile = [self.silent, self.halves, self.noise, self.pings, self.resets, self.unread]
        kinds: list[Callable[..., None]] = (
            [*calls, *hostile] if self._authority is None else [*calls, self.silent]
        )
        chosen = [self.hits, *(rng.choice(kinds) for _ in range(count - 1))]
        threads = [threading.Thread(target=self._loop, args=(kind, rng.random())) for kind in chosen]
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in threads:
            thread.join()

    def _loop(self, kind: Callable[..., None], seed: float) -> None:
        rng, name = random.Random(seed), kind.__name__
        channel = self._channel() if name in ALLOWED else None
        while not self._over.is_set():
            try:
                kind(rng) if channel is None else kind(rng, channel)
                self.counts[name] += 1
            except grpc.RpcError as error:
                code = error.code()
                self.counts[f"{name} {code.name}"] += 1
                if code in ENDED and self.ending.is_set():
                    self._over.wait(0.05)
                elif code not in ALLOWED[name]:
                    self.wrong.append(f"{name}: {code.name} {error.details()}")
            except (OSError, EOFError):
                self.counts[f"{name} closed"] += 1
                self._over.wait(0.01)
            except Exception as error:  # a thread that ends would hide it
                self.wrong.append(f"{name}: {error!r}")
                return
        if channel is not None:
            channel.close()

    def _channel(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._authority is None:
            return grpc.insecure_channel(self._address, options)
        return grpc.secure_channel(self._address, grpc.ssl_channel_credentials(self._authority), options)

    def hits(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Ask what is in memory."""
        path = rng.choice(sorted(PLAIN))
        raw_request, _ = PLAIN[path]
        found = _without_version(path, channel.unary_unary(path)(raw_request, timeout=60))
        if found != self._expected[path]:
            self.wrong.append(f"hits: another reply of {path}")

    def misses(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Ask for users whose rows are not in memory, or for items without vectors."""
        ads, context = (
            rng.choices(ADS, k=rng.randrange(1, 60)),
            {**CONTEXT, "user_id": rng.randrange(1 << 40)},
        )
        if rng.random() < 0.5:
            raw_request = plain_request(context, {"ad_id": ads, "position": [0] * len(ads)})
            channel.unary_unary(RANK)(raw_request, timeout=60)
            return
        ids = rng.choice([None, EVERY, rng.choices(range(90, 160), k=len(ads))])
        bids = [rng.random() for _ in ids or ()]
        raw_request = prerank_request(ids, rng.randrange(1, 70), context, bids=rng.choice([bids, []]))
        channel.unary_unary(PRERANK)(raw_request, timeout=60)

    def mistakes(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Send what is no request."""
        parts = {RANK: ("request", "rank_request", "rank_lists"), PRERANK: ("request", "prerank_request")}
        path = rng.choice(sorted(parts))
        files = sorted((CORPUS / rng.choice(parts[path])).iterdir())
        channel.unary_unary(path)(rng.choice(files).read_bytes(), timeout=60)

    def cancelled(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Cancel calls at any moment."""
        asked = [(path, PLAIN[path][0]) for path in rng.choices(sorted(PLAIN), k=rng.randrange(1, 20))]
        calls = [channel.unary_unary(path).future(raw_request, timeout=60) for path, raw_request in asked]
        time.sleep(rng.random() * 0.003)
        for call in calls:
            call.cancel()

    def deadlines(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Ask with deadlines that mostly pass."""
        path = rng.choice(sorted(PLAIN))
        channel.unary_unary(path)(PLAIN[path][0], timeout=rng.random() ** 4 * 0.05)

    def large(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Send more than a request may have, or almost; what gRPC can send again on another connection."""
        channel.unary_unary(RANK)(bytes(rng.choice((60_000, 70_000, 128_000, 140_000, 200_000))), timeout=60)

    def passed(self, rng: random.Random, channel: grpc.Channel) -> None:
        """Call what the front passes on."""
        health = health_pb2_grpc.HealthStub(channel)
        match rng.randrange(5):
            case 0:
                health.Check(health_pb2.HealthCheckRequest(service=rng.choice(("", "nobody"))), timeout=60)
            case 1:
                for _ in health.Watch(health_pb2.HealthCheckRequest(), timeout=rng.random() * 0.1):
                    pass
            case 2:
                asked = reflection_pb2.ServerReflectionRequest(list_services="")
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                for _ in stub.ServerReflectionInfo(iter([asked] * 3), timeout=60):
                    pass
            case 3:
                channel.unary_unary("/livectr.v1.Model/Describe")(b"", timeout=60)
            case 4:
                channel.stream_stream("/nobody/Nothing")(iter([bytes(100_000)] * 3), timeout=60).result()

    def silent(self, rng: random.Random) -> None:
        """Connect, and say nothing or half a preface."""
        host, _, port = self._address.rpartition(":")
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=5)) as connection:
            connection.sendall(raw.PREFACE[: rng.randrange(len(raw.PREFACE))])
            self._over.wait(rng.random() * 0.2)
            if rng.random() < 0.5:  # a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def halves(self, rng: random.Random) -> None:
        """Send a part of a request, and go."""
        with raw.RawClient(self._address) as client:
            whole = raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request_headers(RANK))
            whole += raw.frame(raw.DATA, raw.END_STREAM, 1, raw.message(plain_request()))
            client.send(whole[: rng.randrange(len(whole))])
            self._over.wait(rng.random() * 0.05)

    def noise(self, rng: random.Random) -> None:
        """Send frames with mistakes."""
        with raw.RawClient(self._address) as client:
            for stream in range(1, 21, 2):
                bad = bytearray(raw.frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request_headers(RANK)))
                bad += raw.frame(raw.DATA, raw.END_STREAM, stream, raw.message(plain_request()))
                for _ in range(rng.randrange(4)):
                    bad[rng.randrange(len(bad))] = rng.randrange(256)
                client.send(bytes(bad))

    def pings(self, rng: random.Random) -> None:
        """Ping until the server has enough."""
        with raw.RawClient(self._address) as client:
            for _ in range(rng.randrange(2000)):
                client.send(raw.frame(raw.PING, 0, 0, bytes(8)))

    def resets(self, rng: random.Random) -> None:
        """Ask, and reset at once."""
        with raw.RawClient(self._address) as client:
            for stream in range(1, 2 * rng.randrange(400) + 2, 2):
                client.ask(stream, rng.choice((RANK, "/livectr.v1.Model/Describe")), plain_request())
                client.send(raw.frame(raw.RST_STREAM, 0, stream, struct.pack(">I", 8)))

    def unread(self, rng: random.Random) -> None:
        """Ask much, and read no reply; in the end, say goodbye."""
        window = struct.pack(">HI", 4, rng.choice((0, 10, 1 << 20)))  # SETTINGS_INITIAL_WINDOW_SIZE
        with raw.RawClient(self._address, window) as client:
            for stream in range(1, 2 * rng.randrange(100) + 2, 2):
                client.ask(stream, RANK, plain_request())
            self._over.wait(rng.random() * 0.1)
            client.send(raw.frame(raw.GOAWAY, 0, 0, bytes(8)))
            self._over.wait(rng.random() * 0.1)


def clients() -> None:
    """Run what each line of stdin tells, and write its counts; the next line says that the server ends."""
    for line in sys.stdin:
        told = json.loads(line)
        authority = None if told["authority"] is None else Path(told["authority"]).read_bytes()
        expected = {path: bytes.fromhex(reply) for path, reply in told["expected"].items()}
        running = Clients(told["address"], authority, expected)
        words = told["count"], told["seconds"], told["seed"]
        thread = threading.Thread(target=running.run, args=words)
        thread.start()
        sys.stdin.readline()
        running.ending.set()
        print("ending", flush=True)
        thread.join()
        print(json.dumps({"counts": running.counts, "wrong": running.wrong[:5]}), flush=True)


@contextlib.contextmanager
def client_process() -> Iterator[subprocess.Popen[str]]:
    """Process of the clients, without sanitizers."""
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-m", "tests.front_load", "--clients"]
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


def run(seconds: float, seed: int) -> int:
    """Start and stop servers under load. Returns 0 if nothing was wrong."""
    rng, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-load-")))
        url = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}")).url + "/0"
        world, authority = World(), Authority(folder)
        cert, key = map(str, authority.issue("server"))
        publish_towers(url, world)
        peer = stack.enter_context(client_process())
        assert peer.stdin is not None and peer.stdout is not None
        until, expected = time.monotonic() + seconds, dict[str, str]()
        while time.monotonic() < until:
            tls = rng.random() < 0.3
            age_s = rng.choice((0.0, 0.0, 0.5))
            options = ServeOptions(
                url,
                front="native",
                max_active=rng.randrange(1, 6),
                max_waiting=rng.choice((0, 4, 64)),
                max_message_bytes=65_000,
                max_connection_age_s=age_s,
                grace_s=30.0 if age_s else rng.choice((0.0, 0.1, 2.0)),  # of requests at that age, too
                tls_cert=cert if tls else None,
                tls_key=key if tls else None,
            )
            app = App("recommend", towers, options)
            app.start()
            assert app.wait_ready(120)
            if not expected:
                expected = _expected(app)
            seconds_of_load = rng.random() * 6
            told = {
                "address": app.server.address.replace("127.0.0.1", "localhost")
                if tls
                else app.server.address,
                "authority": str(authority.ca) if tls else None,
                "expected": expected,
                "count": rng.choice((1, 4, 16, 64)),
                "seconds": seconds_of_load,
                "seed": rng.randrange(1 << 30),
            }
            peer.stdin.write(json.dumps(told) + "\n")
            peer.stdin.flush()
            time.sleep(rng.random() * seconds_of_load * 1.3)
            if rng.random() < 0.3:
                publish_towers(url, world)
            peer.stdin.write("end\n")
            peer.stdin.flush()
            peer.stdout.readline()
            app.stop()
            app.stop()
            line = peer.stdout.readline()
            found = json.loads(line)
            counts.update(found["counts"])
            wrong += found["wrong"]
            counts["servers"] += 1
            print(
                f"{counts['servers']} servers, {sum(counts.values())} outcomes, {len(wrong)} wrong",
                flush=True,
            )
    for name, count in sorted(counts.items()):
        print(f"{count:9,}  {name}")
    print(*wrong[:20], sep="\n")
    return 1 if wrong else 0


def _expected(app: App) -> dict[str, str]:
    """Replies to the plain requests, by a server that nobody else asks."""
    from livectr.serving.calls import RequestCall

    found = {}
    for method in app.sides.stable.role.methods:
        if method.path in PLAIN:
            reply = method.handle(method.read(PLAIN[method.path][0]), RequestCall(method.role))
            reply.message.side = "stable"
            found[method.path] = _without_version(method.path, reply.serialized()).hex()
    return found


def _without_version(path: str, raw_reply: bytes) -> bytes:
    """Reply of a method, without the version that it names."""
    message = PLAIN[path][1].FromString(raw_reply)
    message.version = 0
    return message.SerializeToString(deterministic=True)


def main() -> int:
    """Run the load, in a process with sanitizers if they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitize", choices=KINDS)
    parser.add_argument("--clients", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        clients()
        return 0
    if given.sanitize is None:
        return run(given.seconds, given.seed)
    kind = KINDS[given.sanitize]
    compile_library(kind)
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "tests.front_load", "--seconds", str(given.seconds)]
        variables = environment(kind, Path(name))
        # Libraries below Python are not instrumented, and call nothing of ours.
        silent = Path(name, "suppressions.words")
        silent.write_text(
            "race:cygrpc\nrace:libarrow\nrace:libtorch\nrace:_dl_deallocate_tls\nrace:std::string::_Rep\nrace:std::string::_S_\n"
        )
        variables["TSAN_OPTIONS"] = (
            f"{variables.get('TSAN_OPTIONS', '')}:suppressions={silent}:halt_on_error=0"
        )
        done = subprocess.run([*command, "--seed", str(given.seed)], cwd=ROOT, env=variables)
        for file in sorted(Path(name).iterdir()):
            if file.suffix not in (".so", ".words"):
                print(file.read_text(errors="replace"))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
