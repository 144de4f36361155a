"""Presence of a GPU, for tests that need one."""


def gpu_available() -> bool:
    """True if CuPy is installed and sees a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # CuPy raises its own error without a driver, ImportError without CuPy
        return False
