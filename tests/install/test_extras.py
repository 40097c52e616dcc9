"""What an installation without extras lacks is named with the command that installs it, and nothing else misses it."""

from __future__ import annotations

import re
import site
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore
from tests.installed import ROOT, copy_of_the_checkout
from tests.patience import PATIENCE_SECONDS
from tools.install_size import bytes_in, install, packages_in

INSTALLS_IT = (
    'install the extra server from where streamclient was installed, in a checkout with  pip install ".[server]"'
)

WITHOUT = "import sys; sys.modules['{}'] = None\n"

COMMAND = WITHOUT + "from streamclient.cli.main import main; sys.exit(main(['server', '--port', '0']))"

ROOMS = """
import importlib, pkgutil, streamclient
for each in pkgutil.walk_packages(streamclient.__path__, "streamclient."):
    if not each.name.startswith("streamclient.samples") and not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""

TEST = WITHOUT.format("re2") + "def test_it(local_tablestore): pass\n"


def listed(section: str, name: str) -> list[str]:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return [line for line in parser[section][name].split("\n") if line and not line.startswith("#")]


def extras() -> set[str]:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return set(parser["options.extras_require"])


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_the_base_has_nothing_that_only_the_server_needs_and_all_has_every_extra_of_users() -> None:
    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[ \[]", line)[0] for line in lines}

    assert names(listed("options.extras_require", "server")) == {"aiohttp", "google-re2"}
    assert names(listed("options", "install_requires")) == {"tablestore", "attrs", "apscheduler", "protobuf", "tomli"}
    (everything,) = listed("options.extras_require", "all")
    assert everything.startswith("streamclient[")
    assert set(re.findall(r"\w+", everything)) - {"streamclient"} == extras() - {"all", "dev", "docs"}


@pytest.mark.parametrize("module", ["aiohttp", "re2"])
def test_a_local_server_without_its_extra_names_it(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigurationError) as raised:
        LocalTablestore().start()

    assert str(raised.value) == f"{module} cannot be imported; the local Tablestore needs it: {INSTALLS_IT}"


def test_the_command_names_the_extra_in_one_line(tmp_path: Path) -> None:
    done = run(COMMAND.format("re2"), tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"streamclient server: re2 cannot be imported; the local Tablestore needs it: {INSTALLS_IT}\n"


def test_the_fixture_of_the_pytest_plugin_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 1
    assert INSTALLS_IT in done.stdout


@pytest.mark.slow
def test_every_room_can_be_imported_without_what_only_the_server_needs(tmp_path: Path) -> None:
    assert run(WITHOUT.format("re2") + ROOMS, tmp_path).stderr.strip() == ""


@pytest.mark.slow
def test_an_editable_installation_shows_its_types(tmp_path: Path) -> None:
    """Type checkers follow a line with a folder, and not the import hook that setuptools may install instead."""
    source, venv = copy_of_the_checkout(tmp_path), tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--editable"]
    subprocess.run([*pip, str(source)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    program = tmp_path / "program" / "program.py"
    program.parent.mkdir()
    program.write_text("from streamclient import ClientConfig\nreveal_type(ClientConfig().lease_duration_millis)\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", str(tmp_path / "m")]
    folder = program.parent
    done = subprocess.run([*mypy, program.name], cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.", "")


@pytest.mark.long
@pytest.mark.slow
def test_the_base_alone_consumes_and_brings_few_packages(tmp_path: Path) -> None:
    """From a package index, into an environment of its own."""
    folder = install("", tmp_path / "venv")
    program = (
        "import streamclient, streamclient.tunnel, streamclient.cli.main, streamclient.testing as t; print(t.put('a'))"
    )
    python = str(tmp_path / "venv" / "bin" / "python")
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert (done.returncode, done.stdout) == (0, "PUT {id='a'} [] at 0/0/0\n"), done.stderr
    assert {"google-re2", "pyarrow", "pyspark", "rich"}.isdisjoint(packages_in(folder))
    assert len(packages_in(folder)) <= 24
    assert bytes_in(folder) < 150_000_000
