"""The compiled codec; every other fact is in setup.cfg.

It is optional: where it cannot be compiled, the installation succeeds and the codec in Python serves.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

_NATIVE = Path("streamclient", "wire", "native")
_STABLE_SINCE = "cp310"  # the oldest Python that the package supports

# A build without a global lock has another binary interface, and none that is stable yet.
_IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

_OPTIONS: dict[str, Any] = {"bdist_wheel": {"py_limited_api": _STABLE_SINCE}} if _IS_STABLE else {}

setup(
    ext_modules=[
        Extension(
            "streamclient.wire._native",
            sources=sorted(str(path) for path in _NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in _NATIVE.glob("*.h")),
            extra_compile_args=["-std=c11", "-fvisibility=hidden"],
            py_limited_api=True,
            optional=True,
        )
    ]
    if _IS_STABLE
    else [],
    options=_OPTIONS,
)
