"""The compiled codec; every other fact is in setup.cfg.

It is optional: where it cannot be compiled, the installation succeeds and the codec in Python serves.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_NATIVE = Path("streamclient", "wire", "native")
_STABLE_SINCE = "cp310"  # the oldest Python that the package supports

# A build without a global lock has another binary interface, and none that is stable yet.
_IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

_OPTIONS: dict[str, Any] = {"bdist_wheel": {"py_limited_api": _STABLE_SINCE}} if _IS_STABLE else {}

_FLAGS = ["-std=c11", "-fvisibility=hidden"]
_FLAGS_OF_MSVC = ["/std:c11", "/experimental:c11atomics"]  # which hides by default, and has atomics only when asked


class BuildCodec(build_ext):
    """Compiles with the flags that the compiler at hand knows."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension."""
        ext.extra_compile_args = _FLAGS_OF_MSVC if self.compiler.compiler_type == "msvc" else _FLAGS
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildCodec},
    ext_modules=[
        Extension(
            "streamclient.wire._native",
            sources=sorted(str(path) for path in _NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in _NATIVE.glob("*.h")),
            py_limited_api=True,
            optional=True,
        )
    ]
    if _IS_STABLE
    else [],
    options=_OPTIONS,
)
