"""Exception tree of LiveCTR.

    LiveCTRError
     ├─ UserError            a user's mistake: a sentence that says what to change; the command line exits 2
     │   ├─ ConfigError      bad setting, pipeline file or unknown key
     │   │   └─ NoCompilerError  there is no C++ compiler, and what needs it is not prebuilt
     │   ├─ ConnectError     broker, topic, Redis or server is not there; the command line exits 4
     │   ├─ InUseError       another trainer has the checkpoint, or a port is taken; the command line exits 4
     │   ├─ DataError        the log does not fit the pipeline; the command line exits 3
     │   ├─ RowsError        too many rows of a file do not fit; the command line exits 4
     │   ├─ DiskFullError    nothing more can be written; the run continues once there is space
     │   └─ MismatchError    a checkpoint or published model belongs to another pipeline, run or release
     └─ InternalError
         ├─ NotLearningError the model is broken and learns no batch; every rank raises it at the same place
         ├─ KernelError      device code does not compile (the compiler's text is in the message)
         └─ CheckpointError  no generation of a checkpoint can be restored

It lives in the lowest folder, because every other folder raises from it.
"""

from __future__ import annotations

import errno
import os


class LiveCTRError(Exception):
    """Root of every error that LiveCTR raises on purpose."""


class UserError(LiveCTRError):
    """A user's mistake; the message says what to change.

    Attributes:
        told: a rank of this machine has written the message already.
    """

    told: bool = False


class ConfigError(UserError):
    """A setting, pipeline file or command line that cannot work."""


class NoCompilerError(ConfigError):
    """There is no C++ compiler, and what needs it is not prebuilt."""


class ConnectError(UserError):
    """A broker, topic or Redis server that is not there, or not yet."""


class InUseError(UserError):
    """A checkpoint on which another trainer is running, or has just been killed."""


class DataError(UserError):
    """A log that does not fit the pipeline.

    Args:
        message: sentence that says what to change.
        everywhere: every rank raises it at the same place.
    """

    def __init__(self, message: str, *, everywhere: bool = False) -> None:
        super().__init__(message)
        self.everywhere = everywhere


class RowsError(UserError):
    """A file of which more rows do not fit than may be left out."""


class MismatchError(UserError):
    """A checkpoint or published model that belongs to another pipeline, run or release."""


class DiskFullError(UserError):
    """A disk, quota or file that is full; what was committed is complete."""


class InternalError(LiveCTRError):
    """A failure that is not the user's."""


class NotLearningError(InternalError):
    """The model is broken and learns no batch; every rank raises it at the same place."""


class KernelError(InternalError):
    """Device code does not compile; the message holds the compiler's text."""


class CheckpointError(InternalError):
    """A checkpoint is torn or corrupt."""


def reason_of(error: BaseException) -> str:
    """Reason why a file cannot be used: the system's words for an OSError, else the error's text.

    The text of an OSError repeats the number and the path, and that of PyArrow's has the number twice.
    """
    if isinstance(error, FileNotFoundError):  # PyArrow's has no number
        return os.strerror(errno.ENOENT)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error)
