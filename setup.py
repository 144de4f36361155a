"""Build of a wheel: the kernel library for every level of this machine's CPUs goes into the package.

So does the native front of servers, where the headers of nghttp2 and OpenSSL are. The rest of the package is
in pyproject.toml. $LIVECTR_BUILD_LEVELS names fewer levels, separated by commas.
"""

import os
import platform
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    """Copies the package, then compiles the libraries into it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout: `make setup` compiles it, for its own CPU alone
            return
        sys.path.insert(0, str(Path(__file__).parent))
        from livectr.kernels.runtime.library import build
        from livectr.serving.native.build import NoHttp2Error
        from livectr.serving.native.build import build as build_front
        from livectr.system.cpu import LEVELS, NATIVE, level
        from livectr.system.errors import LiveCTRError

        names = os.environ.get("LIVECTR_BUILD_LEVELS", "")
        known = LEVELS.get(platform.machine(), (NATIVE,))
        built = Path(self.build_lib, "livectr", "kernels", "built")
        try:
            for wanted in [level(name) for name in names.split(",")] if names else known:
                build(wanted, built)
            build_front(built)
        except NoHttp2Error as error:
            self.warn(f"the wheel is without the native front: {error}")
        except LiveCTRError as error:
            raise SystemExit(f"livectr: {error}") from None


class PlatformWheel(bdist_wheel):
    """Wheel for every Python 3, and for this kind of machine alone."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    """Distribution with machine code, and no extension module."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel}, distclass=Binary)
