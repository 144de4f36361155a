"""Offsets of checkpoints, committed to the broker as a consumer group's, so that Kafka's tools show the lag.

They are for monitoring: a run resumes from its checkpoint, and reads them never. The thread holds the newest
offsets; while the broker is away they wait, and training continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, KafkaError
from kafka.structs import OffsetAndMetadata

from livectr.ingest.addresses import connect_admin
from livectr.ingest.chunks import TopicPartition as Place
from livectr.system.errors import UserError
from livectr.trainer.stream import telemetry

LOG = logging.getLogger(__name__)
Offsets = Mapping[Place, int]
"""Topic partition → offset of the first record that is not in the checkpoint."""
RETRY_S = 5.0
COORDINATOR_S = 4.0
CLOSE_S = 5.0
"""Longest time that `close` waits for the broker."""


class GroupOffsets:
    """Commits offsets in a thread of its own.

    Args:
        url: `kafka://HOST:PORT`.
        group: name of the consumer group. It must have no members.
    """

    def __init__(self, url: str, group: str) -> None:
        self._url, self._group = url, group
        self._changed = threading.Condition()
        self._next: Offsets | None = None
        self._deadline_s: float | None = None
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="livectr-group-offsets", daemon=True)
        self._thread.start()

    def commit(self, offsets: Offsets) -> None:
        """Commit these offsets soon, in place of earlier ones that still wait."""
        with self._changed:
            self._next = offsets
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits, for up to CLOSE_S seconds, and end."""
        with self._changed:
            self._deadline_s = time.monotonic() + CLOSE_S
            self._changed.notify()
        self._thread.join(2 * CLOSE_S)
        if self._thread.is_alive():
            telemetry.GROUP_COMMIT_FAILURES.inc()
            LOG.warning(
                "%s takes no offsets of group %s (it does not answer); its lag stays too high for now",
                *(self._url, self._group),
            )

    def _work(self) -> None:
        admin: Any = None
        while (offsets := self._wait()) is not None:
            try:
                admin = admin or connect_admin(self._url)
                self._send(admin, offsets)
            except (KafkaError, UserError, OSError) as error:
                self._missed(error, offsets)
                if admin is not None:
                    with suppress(KafkaError):
                        admin.close()
                admin = None
            else:
                if self._failing:
                    self._failing = False
                    LOG.warning("%s takes the offsets of group %s again", self._url, self._group)
        if admin is not None:
            admin.close()

    def _wait(self) -> Offsets | None:
        """Offsets to commit; None: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._deadline_s is not None)
            offsets, self._next = self._next, None
            return offsets

    def _send(self, admin: Any, offsets: Offsets) -> None:
        """Commit the offsets. Raises KafkaError when the broker refuses one of them."""
        wanted = {TopicPartition(*place): OffsetAndMetadata(at, "", -1) for place, at in offsets.items()}
        limit_s = time.monotonic() + COORDINATOR_S
        while True:
            try:
                answers = admin.alter_group_offsets(self._group, wanted)
                break
            except CoordinatorNotAvailableError:  # the first group of a cluster: brokers make their topic
                if time.monotonic() > limit_s:
                    raise
                time.sleep(0.2)
        for error in answers.values():
            if error is not None and error.errno:
                raise error("a member of the group may be running; name another group")

    def _missed(self, error: Exception, offsets: Offsets) -> None:
        telemetry.GROUP_COMMIT_FAILURES.inc()
        if not self._failing:
            self._failing = True
            LOG.warning(
                "%s takes no offsets of group %s (%s); training continues", self._url, self._group, error
            )
        with self._changed:
            ending = self._deadline_s is not None and time.monotonic() > self._deadline_s
            self._next = self._next or (None if ending else offsets)  # again, if nothing newer waits
            self._changed.wait_for(lambda: self._deadline_s is not None, RETRY_S)
        if self._deadline_s is not None:
            time.sleep(0.2)
