"""Round trips to Redis are measured, and failures counted by what they mean."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from prometheus_client import REGISTRY

from livectr.local.ports import free_ports
from livectr.store.measured_redis import MeasuredRedis
from tests.metrics_page import metric_value


def trips(name: str) -> float:
    return metric_value("livectr_redis_seconds_count", client=name)


def errors(name: str) -> dict[str, float | None]:
    return {
        outcome: REGISTRY.get_sample_value("livectr_redis_errors_total", {"client": name, "outcome": outcome})
        for outcome in ("degraded", "unavailable", "exit")
    }


def test_a_round_trip_is_measured_once(redis_url: str) -> None:
    client = MeasuredRedis.named("once", redis_url)
    assert trips("once") == 0 and errors("once") == {"degraded": 0, "unavailable": 0, "exit": 0}
    client.set("a", "b")
    assert client.get("a") == b"b" and trips("once") == 2
    pipe = client.pipeline(transaction=False)
    for number in range(5):
        pipe.set(f"a{number}", number)
    assert pipe.execute() == [True] * 5 and trips("once") == 3
    assert pipe.execute() == [] and trips("once") == 3, "an empty pipeline asks nothing"
    script = client.register_script("return ARGV[1] .. 'once'")
    script(args=["x"], client=pipe)
    assert pipe.execute() == [b"xonce"]
    client.script_flush()
    assert script(args=["y"]) == b"yonce"
    assert errors("once")["degraded"] == 0, "that a script has to be loaded is no error"
    client.delete("a", *(f"a{number}" for number in range(5)))
    client.close()


def test_errors_are_counted_by_their_meaning(redis_url: str) -> None:
    client = MeasuredRedis.named("failing", redis_url)
    client.set("text", "b")
    with pytest.raises(redis.ResponseError):
        client.lpush("text", "c")
    pipe = client.pipeline(transaction=False)
    pipe.lpush("text", "c")
    with pytest.raises(redis.ResponseError):
        pipe.execute()
    client.delete("text")
    client.close()
    away = MeasuredRedis.named("failing", f"redis://127.0.0.1:{free_ports(1)}")
    with pytest.raises(redis.ConnectionError):
        away.ping()
    assert errors("failing") == {"degraded": 1, "unavailable": 2, "exit": 0}
    away.close()


def test_fetch_reads_as_mget_does_and_is_measured(redis_url: str) -> None:
    client = MeasuredRedis.named("fetching", redis_url)
    client.mset({"a": b"1", "b": bytes(range(256))})
    before = trips("fetching")
    assert (
        client.fetch([b"b", b"none", b"a"]) == [bytes(range(256)), None, b"1"]
        and trips("fetching") == before + 1
    )
    with ThreadPoolExecutor(4) as pool:
        names = [[b"a"] * n for n in range(1, 60)]
        assert list(pool.map(client.fetch, names)) == [[b"1"] * len(of) for of in names]
    client.delete("a", "b")
    client.close()


def test_fetch_survives_a_connection_that_redis_closed(redis_url: str) -> None:
    client, other = MeasuredRedis.named("closed", redis_url), redis.Redis.from_url(redis_url)
    other.set("a", "1")
    for _ in range(3):
        assert client.fetch([b"a"]) == [b"1"]
        other.client_kill_filter(_type="normal", skipme=True)
    assert errors("closed") == {"degraded": 0, "unavailable": 0, "exit": 0}
    client.interrupt()  # an idle connection is replaced
    assert client.fetch([b"a"]) == [b"1"]
    other.delete("a")
    other.close()
    client.close()


def test_errors_of_fetch_are_counted_and_do_not_stay(redis_url: str) -> None:
    client, other = MeasuredRedis.named("refused", redis_url), redis.Redis.from_url(redis_url)
    with pytest.raises(redis.ResponseError):
        client.fetch([])
    assert errors("refused")["unavailable"] == 1 and client.fetch([b"a"]) == [None]
    away = MeasuredRedis.named("refused", f"redis://127.0.0.1:{free_ports(1)}")
    with pytest.raises(redis.ConnectionError):
        away.fetch([b"a"])
    assert errors("refused")["degraded"] == 1
    for each in (client, other, away):
        each.close()
