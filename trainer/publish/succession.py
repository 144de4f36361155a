"""Succession: rules, without a connection, for a trainer whose namespace already holds a version.

A trainer may take over a version if it has the same pipeline and resumes from a checkpoint of the same run.
The checkpoint must not be behind: it has learned at least the examples of the older of the two generations
that the publisher kept. All other trainers need `--take-over`.

Versions may be published between two checkpoints. A successor learns the same batches again from the last
checkpoint on, since batches are a function of the logs. It publishes nothing before it has learned as much as
the version that is served: the served version never goes back.
"""

from dataclasses import dataclass

from livectr.store.manifest import VersionManifest

LOST_NUMBERS = 1_000_000
"""Numbers to skip if Redis has lost its record of used numbers, and only a checkpoint knows some. No run
publishes so many versions between two checkpoints."""


@dataclass(frozen=True)
class Cursor:
    """Point that publishing had reached at a checkpoint: the version that was begun at that step boundary.

    Attributes:
        version, epoch: numbers of the version; the highest used numbers if none was begun.
        row_set: row set of the version; "" if none was begun.
        step: of the boundary.
        run_id: shared by all processes of a run; version manifests have it too.
        served, served_row_set: version that Redis held at the boundary, before the version that began there;
            the checkpoint lists the keys that changed after it (`unpublished`). 0 and "": unknown.
    """

    version: int
    epoch: int
    row_set: str
    step: int
    run_id: str = ""
    served: int = 0
    served_row_set: str = ""

    def is_at(self, held: VersionManifest | None) -> bool:
        """Tell if `held` is the very version that was begun at the checkpoint."""
        if held is None:
            return False
        own = self.version, self.epoch, self.row_set, self.step, self.run_id
        return own == (held.version, held.epoch, held.row_set, held.step, held.run_id)


def refusal(
    held: VersionManifest | None, cursor: Cursor | None, *, learned: int, fingerprint: str, where: str
) -> str | None:
    """Refuse a trainer that may not take over without `--take-over`.

    Args:
        held: version in Redis.
        cursor: of the checkpoint that the trainer resumes from.
        learned: examples of that checkpoint.
        fingerprint: of the trainer's pipeline.
        where: the namespace, in words.

    Returns:
        The reason as a sentence; None: the trainer may take over.
    """
    if held is None:
        return None
    if held.fingerprint != fingerprint:
        return (
            f"{where} serves version {held.version} of another pipeline (fingerprint "
            f"{held.fingerprint[:12]}, this one is {fingerprint[:12]}); name another --namespace, or say "
            "--take-over to replace it"
        )
    if cursor is None or cursor.run_id != held.run_id:
        return (
            f"{where} serves version {held.version} of another run, which has learned {held.examples:,} "
            "examples; resume from its --checkpoint, name another --namespace, or say --take-over to "
            "replace it"
        )
    if learned < held.committed:
        return (
            f"{where} serves version {held.version} of a run whose checkpoint had {held.committed:,} "
            f"examples, but this --checkpoint has {learned:,}; bring the newer one back, or say --take-over "
            "to go back"
        )
    return None
