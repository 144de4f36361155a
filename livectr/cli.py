"""The command line's entry. A command's code is imported when the command runs.

Exit codes: 0 done, 1 a part failed, 2 a user's mistake, 3 a log that does not fit the pipeline, 4 nothing
answers at an address, 130 Ctrl-C; 1 to 4 with one sentence on standard error.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from livectr.commands.arguments import build_parser
from livectr.kernels.errors import ConfigError, ConnectError, DataError, InternalError, UserError
from livectr.kernels.process.disk import is_full


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # kafka-python repeats itself while a broker is away; what matters, our own loggers and errors say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        given = build_parser().parse_args(arguments)
        given.arguments = list(sys.argv[1:] if arguments is None else arguments)
        if not hasattr(given, "run"):
            raise ConfigError("say what to do: `livectr --help` lists the commands.")
        from livectr.commands import handlers

        code = getattr(handlers, given.run)(given)
        sys.stdout.flush()
        return int(code or 0)
    except DataError as error:
        if int(os.environ.get("RANK", 0)) == 0:  # the other ranks say the same
            print(f"livectr: {error}", file=sys.stderr)
        return 3
    except UserError as error:
        print(f"livectr: {error}", file=sys.stderr)
        return 4 if isinstance(error, ConnectError) else 2
    except InternalError as error:
        print(f"livectr: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("livectr: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `livectr inspect … | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if is_full(error):
            where = f"{error.filename}: " if error.filename else ""
            print(
                f"livectr: no space is left to write to ({where}{error.strerror}); free some.",
                file=sys.stderr,
            )
            _leave_stdout()
            return 2
        if error.filename is None:
            raise
        # A path that the user named: a folder where a file should be, no permission, …
        print(f"livectr: {error.filename}: {error.strerror}; name another path.", file=sys.stderr)
        return 2


def _leave_stdout() -> None:
    """Drop what standard output cannot take: the interpreter would fail on it once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
