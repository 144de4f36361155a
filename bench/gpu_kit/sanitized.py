"""Program for compute-sanitizer: kernels of extraction and tables on small inputs, without PyTorch's own."""

from __future__ import annotations

from bench.gpu_kit import mode
from bench.gpu_kit.kernels import watch
from bench.gpu_kit.smoke import a_table, an_extraction
from livectr.kernels.runtime.device import require_gpu


def main() -> None:
    """Run what the first look runs, on inputs of a few blocks.

    Each buffer is an allocation of CUDA's: in a pool, one that is read past its end runs into the next.
    """
    watch()
    if not mode.dry():
        require_gpu().cuda.set_allocator(None)
    a_table(600)
    an_extraction(600)


if __name__ == "__main__":
    main()
