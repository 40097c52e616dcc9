"""Pages fit a screen and stand in the index; what they tell of settings and names is what the code has."""

from __future__ import annotations

import re
from enum import Enum
from importlib import import_module
from pathlib import Path

import attrs
import pytest

from streamclient import ClientConfig, StreamConfig
from streamclient.tunnel import TunnelWorkerConfig
from tests.docs.test_documentation_figures import rows_below

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "_generated" not in page.parts)]
BLOCK = re.compile(r"^```([^\s`]+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WIDEST = 80
OUTPUT = {"text", "console", "{eval-rst}", "json"}
"""Blocks that show what something printed, or that nobody sees as they are written."""

GROUPS = ["Start", "Use", "Operate", "Understand"]


def wide_lines(text: str) -> list[str]:
    return [
        line
        for language, body in BLOCK.findall(text)
        if language not in OUTPUT
        for line in body.splitlines()
        if len(line) > WIDEST
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_fits_80_columns(page: Path) -> None:
    assert wide_lines(page.read_text()) == []


def test_code_that_is_too_wide_is_noticed() -> None:
    """The check itself can fail, and leaves output alone."""
    assert wide_lines(f"```python\n{'x' * 81}\n```\n\n```text\n{'x' * 81}\n```\n") == ["x" * 81]


def groups() -> dict[str, list[str]]:
    """Pages of each group of the index."""
    found = {}
    for body in TOCTREE.findall((DOCS / "index.md").read_text()):
        lines = body.split()
        caption = body.partition(":caption: ")[2].partition("\n")[0]
        found[caption] = [line for line in lines if (DOCS / f"{line}.md").exists()]
    return found


def test_the_index_has_four_groups_and_every_page_is_in_one_of_them() -> None:
    pages = sorted(path.stem for path in DOCS.glob("*.md") if path.stem != "index")
    listed = [page for group in groups().values() for page in group]

    assert list(groups()) == GROUPS
    assert sorted(listed) == sorted([*pages, "decisions/index"])


def test_the_index_says_how_to_install_and_shows_an_example_with_its_output() -> None:
    text = (DOCS / "index.md").read_text()

    assert text.index("pip install") < text.index("```python") < text.index("```text") < text.index("{toctree}")


# --- coming from elsewhere -----------------------------------------------------------------------------------------


def shown(default: object) -> str:
    """A default as the page writes it."""
    if isinstance(default, bool) or default is None:
        return str(default)
    return f"{default:,}" if isinstance(default, int) else str(default)


def default_of(settings: type, name: str) -> str:
    default = getattr(attrs.fields(settings), name).default
    return shown(default.value if isinstance(default, Enum) else default)


def told(head: str) -> dict[str, tuple[str, str]]:
    """By our name: the other's name and our default, of one table of the page."""
    return {
        row[-2].strip("`"): (row[0].strip("`"), row[-1]) for row in rows_below("coming-from.md", head)
    }  # the others' defaults stand between


TABLES = {
    "| Java `ClientConfig` |": ClientConfig,
    "| Java `StreamConfig` |": StreamConfig,
    "| Java `TunnelWorkerConfig` |": TunnelWorkerConfig,
}


@pytest.mark.parametrize("head", TABLES)
def test_the_defaults_told_for_our_side_are_those_of_the_code(head: str) -> None:
    settings = TABLES[head]

    assert {name: default for name, (_, default) in told(head).items()} == {
        name: default_of(settings, name) for name in told(head)
    }


def python_name(java: str) -> str:
    """As the settings of ours are called after those of the Java clients."""
    name = re.sub(r"([A-Z])", lambda found: f"_{found.group(1).lower()}", java)
    return re.sub("_in_(sec|millis)$", lambda found: {"sec": "_seconds", "millis": "_millis"}[found.group(1)], name)


@pytest.mark.parametrize("head", TABLES)
def test_settings_stand_beside_those_that_they_are_named_after(head: str) -> None:
    assert {ours: python_name(java) for ours, (java, _) in told(head).items()} == {name: name for name in told(head)}


def test_every_setting_that_the_java_clients_have_is_told() -> None:
    ported = [field.name for field in attrs.fields(ClientConfig)]
    ported = ported[: ported.index("signal_interval_millis")]  # what follows is ours alone
    own = {"client_config", "client_tag"}  # ours alone, and told below the table
    tunnel = [field.name for field in attrs.fields(TunnelWorkerConfig) if field.name not in own]

    assert sorted(told("| Java `ClientConfig` |")) == sorted(ported)
    assert sorted(told("| Java `TunnelWorkerConfig` |")) == sorted(tunnel)


# --- the reference -------------------------------------------------------------------------------------------------

ALIASES = {
    "streamclient.spark": {"Sink", "SparkRecordProcessor", "Transform"},
    "streamclient.server": {"DEFAULT_ACCESS_KEY_ID", "DEFAULT_ACCESS_KEY_SECRET", "DEFAULT_INSTANCE"},
}
"""Types of functions and texts, which need no entry of their own; a processor is made by its factory."""


@pytest.mark.parametrize(
    ("package", "page"),
    [
        ("streamclient.spark", "reference-spark.md"),
        ("streamclient.destinations", "reference-spark.md"),
        ("streamclient.server", "reference-server.md"),
        ("streamclient.tunnel", "reference.md"),
        ("streamclient.tablestore", "reference.md"),
    ],
)
def test_every_public_name_of_a_room_is_in_the_reference(package: str, page: str) -> None:
    documented = set(re.findall(rf":: {re.escape(package)}\.(\w+)$", (DOCS / page).read_text(), re.MULTILINE))

    assert set(import_module(package).__all__) - ALIASES.get(package, set()) - documented == set()
