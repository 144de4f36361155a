"""Which trainer may publish into a namespace that holds a version already: rules, without a connection.

A trainer is the rightful successor of the one that published the version when it has the same pipeline, goes
on from a checkpoint of the same run, and that checkpoint is not behind: it has learned at least what the
older of the two generations had learned that the publisher kept. Everybody else has to say `--take-over`.

Versions may be published between two checkpoints. A successor that goes on from the last checkpoint learns
the same batches again, since these are a function of the logs, and publishes nothing before it has learned as
much as the version that is served: what is served never goes back.
"""

from dataclasses import dataclass

from livectr.protos.manifest import VersionManifest

LOST_NUMBERS = 1_000_000
"""Numbers to skip where Redis has lost its record of those that were used, and only a checkpoint knows some:
so many versions are not published between two checkpoints."""


@dataclass(frozen=True)
class Cursor:
    """Where publishing stood at a checkpoint: the version that was begun at that step boundary.

    ns: "" when none was begun there; then version and epoch are the highest numbers that were used.
    run: one word for all processes of a run; version manifests have it too.
    """

    version: int
    epoch: int
    ns: str
    step: int
    run: str = ""

    def is_at(self, held: VersionManifest | None) -> bool:
        """Whether Redis holds the very version that was begun at the checkpoint."""
        return held is not None and self == Cursor(held.version, held.epoch, held.ns, held.step, held.run)


def refusal(
    held: VersionManifest | None, cursor: Cursor | None, *, learned: int, fingerprint: str, where: str
) -> str | None:
    """Why a trainer may not take over without being told to, as a sentence; None: it may.

    Args:
        held: the version in Redis.
        cursor: of the checkpoint that the trainer goes on from. learned: examples of it.
        where: the namespace, in words.
    """
    if held is None:
        return None
    if held.fingerprint != fingerprint:
        return (
            f"{where} serves version {held.version} of another pipeline (fingerprint "
            f"{held.fingerprint[:12]}, this one is {fingerprint[:12]}); name another --namespace, or say "
            "--take-over to replace it"
        )
    if cursor is None or cursor.run != held.run:
        return (
            f"{where} serves version {held.version} of another run, which has learned {held.examples:,} "
            "examples; go on from its --checkpoint, name another --namespace, or say --take-over to "
            "replace it"
        )
    if learned < held.committed:
        return (
            f"{where} serves version {held.version} of a run whose checkpoint had {held.committed:,} "
            f"examples, but this --checkpoint has {learned:,}; bring the newer one back, or say --take-over "
            "to go back"
        )
    return None
