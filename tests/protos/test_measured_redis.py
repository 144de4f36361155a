"""Round trips to Redis are measured, and failures counted by what they mean."""

import pytest
import redis
from prometheus_client import REGISTRY

from livectr.local.ports import free_ports
from livectr.protos.measured_redis import MeasuredRedis


def trips(name: str) -> float:
    return REGISTRY.get_sample_value("livectr_redis_seconds_count", {"client": name}) or 0.0


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
