"""Probes of a trainer's supervisor: they answer whatever its ranks do, while its loop turns."""

from __future__ import annotations

import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from livectr.local import pulse
from livectr.local.ports import free_ports
from livectr.local.pulse import Pulse
from livectr.system.errors import ConfigError
from tests.serving.kubelet import Kubelet
from tests.waiting import until

ALL, NONE = (
    dict.fromkeys(("startup", "ready", "", "live"), True),
    dict.fromkeys(("startup", "ready", "", "live"), False),
)


def test_a_loop_that_stands_still_is_not_alive_until_it_turns_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: now_s))
    kubelet = Kubelet()
    with closing(Pulse(kubelet.address, still_s=2.0)) as made:
        for _ in range(3):
            made.beat()
            now_s += 1.9
            time.sleep(0.3)  # three looks
            assert kubelet.all() == ALL
        now_s += 0.2
        until(lambda: kubelet.all() == NONE)

        def turns() -> bool:
            made.beat()
            return kubelet.ask("live") is True

        until(turns)
    assert kubelet.ask("live") is None


def test_addresses_that_cannot_be_listened_on() -> None:
    taken = f"127.0.0.1:{free_ports(1)}"
    with closing(Pulse(taken)):
        for listen, says in ((taken, "choose another health_listen"), ("8081", "must be HOST:PORT")):
            with pytest.raises(ConfigError, match=says):
                Pulse(listen)
