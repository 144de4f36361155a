"""Kernel library of this CPU: compiled, where the kit brings that of another level of CPU.

It is a step of its own, since one to three minutes of CPU time would take what the next steps are given.
"""

from __future__ import annotations

from livectr.kernels.runtime.library import kernel_library


def main() -> None:
    """Find or compile it."""
    kernel_library()
    print("the kernel library of this CPU is there", flush=True)


if __name__ == "__main__":
    main()
