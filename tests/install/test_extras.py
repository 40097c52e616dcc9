"""What an installation without extras lacks is named with the command that installs it, and nothing else misses it."""

from __future__ import annotations

import ast
import re
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tablestore import OTSClient

import streamclient
from streamclient import ProcessRecordsInput, copying, destinations, metrics, spark
from streamclient.base.extras import PACKAGES
from streamclient.destinations.rows import frames
from streamclient.errors import ConfigurationError, install_extra
from streamclient.server import LocalTablestore
from streamclient.testing import put
from tests.installed import ROOT, copy_of_the_checkout
from tests.patience import PATIENCE_SECONDS
from tools.install_size import bytes_in, install, packages_in

INSTALLS_IT = (
    'install the extra server from the same source as streamclient, in a checkout with  pip install ".[server]"'
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


def test_the_table_of_extras_is_that_of_the_installation() -> None:
    """By the names under which their packages are imported."""
    imported = {"google-re2": "re2", "opentelemetry-api": "opentelemetry", "opentelemetry-sdk": "opentelemetry"}
    users = extras() - {"all", "dev", "docs"}

    def modules(extra: str) -> set[str]:
        names = [re.split(r"[ \[]", line)[0] for line in listed("options.extras_require", extra)]
        return {imported.get(name, name.replace("-", "_")) for name in names}

    assert {extra: set(names) for extra, names in PACKAGES.items()} == {extra: modules(extra) for extra in users}


RECORD = put("a")
CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "local")
_CATALOG = type("Catalog", (), {"load_table": None})()
_FRAME: Any = SimpleNamespace(columns=["id"])

NEEDS: dict[str, tuple[str, Callable[[], object]]] = {
    "DeltaDestination": ("delta", lambda: destinations.DeltaDestination("lake")),
    "IcebergDestination": ("iceberg", lambda: destinations.IcebergDestination(_CATALOG, "lake.orders")),
    "PostgresDestination": ("postgres", lambda: destinations.PostgresDestination("host=db", "orders")),
    "Mirror": ("delta", lambda: copying.Mirror(CLIENT, "orders", "status", "lake")),
    "LocalTablestore": ("server", lambda: LocalTablestore().start()),
    "OpenTelemetryMetrics": ("otel", metrics.OpenTelemetryMetrics),
    "PrometheusMetrics": ("prometheus", metrics.PrometheusMetrics),
    "TablestoreDataSource": ("spark", lambda: spark.TablestoreDataSource({})),
    "SparkRecordProcessorFactory": ("spark", lambda: spark.SparkRecordProcessorFactory(lambda frame, context: None)),
    "local_session": ("spark", spark.local_session),
    "fold_changes": ("spark", lambda: spark.fold_changes(_FRAME, ["id"])),
    "row_history": ("spark", lambda: spark.row_history(_FRAME, ["id"])),
}
"""Public names that need all packages of an extra."""

NEEDS_ARROW: dict[str, Callable[[], object]] = {
    "record_batch": lambda: streamclient.record_batch([RECORD], None),
    "ProcessRecordsInput.arrow": lambda: ProcessRecordsInput([RECORD], *([_FRAME] * 2)).arrow(),
    "Batch.to_arrow": lambda: frames.to_arrow([RECORD]),
    "change_rows": lambda: destinations.change_rows([RECORD], shard="s", number=0),
    "columns_of_pages": lambda: destinations.columns_of_pages([]),
    "records_digest": lambda: destinations.records_digest([RECORD]),
}
"""Public names that need pyarrow alone, which several extras bring; the smallest of these is named."""


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every import of a package fail for the rest of a test, as where it is not installed."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == package]
    for name in {package, *loaded}:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("name", "package"), [(name, package) for name, (extra, _) in NEEDS.items() for package in PACKAGES[extra]]
)
def test_a_public_name_without_a_package_of_its_extra_names_both(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, use = NEEDS[name]
    hide(package, monkeypatch)
    monkeypatch.delitem(vars(spark), "TablestoreDataSource", raising=False)  # it may be loaded already

    with pytest.raises(ConfigurationError) as raised:
        use()

    assert re.match(rf"{package}(\.\w+)? cannot be imported", str(raised.value))
    assert str(raised.value).endswith(install_extra(extra))


@pytest.mark.parametrize("name", NEEDS_ARROW)
def test_a_public_name_without_pyarrow_names_an_extra_that_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("pyarrow", monkeypatch)

    with pytest.raises(ConfigurationError, match=r"^pyarrow(\.compute)? cannot be imported") as raised:
        NEEDS_ARROW[name]()

    assert str(raised.value).endswith(install_extra("delta"))


IMPORTED_AFTER_A_CHECK = {
    "cli/top_screens.py": "has_rich is asked first, and without rich the screen is plain",
    "console/app.py": "the server requires its extra at its start",
    "destinations/postgres/postgres_wait.py": "loaded by `load`",
    "metrics/prometheus.py": "after the library of the registry was loaded",
    "server/any_http.py": "the server requires its extra at its start",
    "server/patterns.py": "the server requires its extra at its start",
    "spark/source/data_source.py": "the face requires pyspark",
}
"""The modules that import packages of extras themselves, and why no user meets a bare ImportError there. All others
import by ``load`` and for types only."""


def test_packages_of_extras_are_imported_by_load_or_after_a_check() -> None:
    packages = {name for names in PACKAGES.values() for name in names}

    def imports(tree: ast.AST) -> Iterator[str]:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
                yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))
            yield from imports(node)

    folder = ROOT / "streamclient"
    importing = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "samples" not in path.parts
        and packages & {name.partition(".")[0] for name in imports(ast.parse(path.read_text()))}
    }

    assert importing - {"wire/columns.py"} == set(IMPORTED_AFTER_A_CHECK)


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
