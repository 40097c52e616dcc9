"""Pages fit a screen and stand in the index; what they tell of settings and names is what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import pytest
from tablestore import (
    FieldSchema,
    FieldType,
    OTSClient,
    OTSServiceError,
    SearchIndexMeta,
    SecondaryIndexMeta,
)

from streamclient import ClientConfig, StreamConfig
from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelWorkerConfig
from tests.docs.page_examples import commands
from tests.docs.test_documentation_figures import rows_below
from tools.structure import FACES

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


WARNING = "whatever `pip install streamclient` finds there is another program"


def test_nobody_is_told_to_install_the_program_of_others() -> None:
    """It has the name of this package on an index that this package is not on."""
    files = [*PAGES, *sorted((ROOT / "streamclient").rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    wrong = re.compile(r"pip install[^`\n]*\bstreamclient\b(?!-\*\.whl)[^\n]*")

    assert {name: found for name, text in texts.items() if (found := wrong.findall(text.replace(WARNING, "")))} == {}
    assert [name for name, text in texts.items() if WARNING in text] == ["README.md", "docs/index.md"]


def codes() -> list[str]:
    """What users read and copy: every sample, and every example in Python on a page."""
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
    samples = [path.read_text() for path in sorted((ROOT / "samples").rglob("*.py"))]
    return [*samples, *(body for language, body in blocks if language in {"python", "py"})]


def blind_loops(code: str) -> list[str]:
    """Loops that do nothing but wait, and do not ask whether what they wait for still runs."""
    loops = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.While)]
    return [
        ast.unparse(loop)
        for loop in loops
        if all(re.search(r"\.(wait|join|sleep)\([^()]*\)$", ast.unparse(each)) for each in loop.body)
        and "is_alive" not in ast.unparse(loop.test)
    ]


def test_no_example_waits_for_a_worker_that_may_be_dead() -> None:
    """``Worker.wait(until=...)`` is woken by its death."""
    assert [loop for code in codes() for loop in blind_loops(code)] == []
    assert blind_loops("while not seen:\n    time.sleep(1)") == ["while not seen:\n    time.sleep(1)"]


def install_section(page: str) -> str:
    return (ROOT / page).read_text().split("## Install\n", 1)[1].split("\n## ", 1)[0]


def setup() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_how_to_install_names_every_extra_that_users_want_and_ends_with_an_installed_wheel(page: str) -> None:
    text = install_section(page)
    sentence = re.search(r"[Ee]xtras are ([^(]*)\(", text)
    extras = {*setup()["options.extras_require"]} - {"dev", "docs"}

    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == extras
    assert commands(text) == commands(install_section("README.md"))
    assert commands(text)[-1][0].startswith('pip install --quiet "$(ls dist/streamclient-')


NOT_THERE: dict[str, Callable[[OTSClient], object]] = {
    "search indexes": lambda client: client.create_search_index(
        "orders", "by_state", SearchIndexMeta([FieldSchema("state", FieldType.KEYWORD)])
    ),
    "secondary indexes": lambda client: client.create_secondary_index(
        "orders", SecondaryIndexMeta("by_state", ["state"], []), False
    ),
    "SQL": lambda client: client.exe_sql_query("select * from orders"),
    "time series": lambda client: client.delete_timeseries_table("orders"),
}


def test_the_readme_says_what_nobody_has_seen_and_what_is_not_there(local: LocalTablestore) -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    service, _, rest = text.partition("None of this has ever run against Tablestore itself")[2].partition("not there: ")
    missing = re.split(r", | and ", rest.partition(" on the local server")[0])

    assert "[decision](docs/decisions/index.md) says what was assumed" in service
    assert missing == [*NOT_THERE]
    for call in NOT_THERE.values():
        with pytest.raises(OTSServiceError, match="Unsupported operation"):
            call(local.client())
    assert "On Windows nothing has run yet" in rest
    systems = [line for line in setup()["metadata"]["classifiers"].split("\n") if line.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX"]


def test_the_table_of_samples_has_all_of_them() -> None:
    listed = re.findall(r"^\| `samples/(\w+)(?:\.py|/)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    places = [path for path in (ROOT / "samples").glob("[a-z]*") if path.is_dir() or path.suffix == ".py"]

    assert sorted(listed) == sorted(path.stem for path in places)


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

ENTRY = re.compile(r"^\.\. auto(\w+):: ([\w.]+)\n((?: +:.*\n)*)", re.MULTILINE)

ELSEWHERE = {
    "streamclient.__version__",
    "streamclient.aio",
    "streamclient.metrics.METRICS",
    "streamclient.metrics.metric_table",
    "streamclient.server.DEFAULT_ACCESS_KEY_ID",
    "streamclient.server.DEFAULT_ACCESS_KEY_SECRET",
    "streamclient.server.DEFAULT_INSTANCE",
    "streamclient.spark.Sink",
    "streamclient.spark.SparkRecordProcessor",
    "streamclient.spark.Transform",
    "streamclient.testing.DESTINATION_SCENARIOS",
    "streamclient.testing.LEASE_MANAGER_SCENARIOS",
    "streamclient.testing.MERGING_SCENARIOS",
    "streamclient.testing.WORKER_DIRECTORY_SCENARIOS",
}
"""Types of functions and texts, which need no entry of their own; a processor that its factory makes; what only other
rooms use of leases and workers; and metrics, which have a page."""


def named(path: str) -> Any:
    """What a dotted name stands for: where a function has the name of its module, the function."""
    package, _, name = path.rpartition(".")
    module = import_module(package)
    return getattr(module, name) if hasattr(module, name) else import_module(path)


def entries(text: str) -> Iterator[Any]:
    """What a page of the reference describes."""
    for kind, path, options in ENTRY.findall(text):
        found = import_module(path) if kind == "module" else named(path)
        if kind != "module":
            yield found
            continue
        names = re.search(r":members: (.+)", options)
        own = {name: value for name, value in vars(found).items() if getattr(value, "__module__", None) == path}
        yield from (own[name] for name in (names[1].split(", ") if names else own))


def imported_by(code: str) -> Iterator[str]:
    """Names of this package that an example or a sample imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "streamclient":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_name_that_users_import_is_in_the_reference() -> None:
    """The public names of each face, and whatever the pages and the samples import besides."""
    described = {id(each) for page in DOCS.glob("reference*.md") for each in entries(page.read_text())}
    public = {f"{face}.{name}" for face in FACES for name in import_module(face).__all__}
    used = {name for code in codes() for name in imported_by(code)}

    assert {name for name in public | used if id(named(name)) not in described} == ELSEWHERE


# --- decisions -----------------------------------------------------------------------------------------------------

DECISIONS = DOCS / "decisions"
MARKS = ["Confirmed", "Refuted"]
KNOWN_SINCE = re.compile(r"^## Known since\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SOME_MARK = re.compile(r"(?:^#+ |\*\*)(?:Known since|Confirmed|Refuted)\b|^(?:Confirmed|Refuted): ", re.MULTILINE)


def marks_of(page: str) -> list[str]:
    """Which of the two words begin paragraphs of the page's section on what is known since."""
    mark = re.compile(rf"^({'|'.join(MARKS)}): ", re.MULTILINE)
    return [word for section in KNOWN_SINCE.findall(page) for word in mark.findall(section)]


def test_pages_of_decisions_that_the_index_names_say_what_is_confirmed_and_what_refuted() -> None:
    pages = {path.name: path.read_text() for path in DECISIONS.glob("*.md")}
    named = re.findall(r"\]\(([\w-]+\.md)\)", pages.pop("index.md"))

    assert named
    assert sorted(named) == sorted(name for name, page in pages.items() if SOME_MARK.search(page))
    assert {name: marks_of(pages[name]) for name in named} == dict.fromkeys(named, MARKS)


def test_a_page_that_says_it_elsewhere_or_only_half_is_noticed() -> None:
    assert SOME_MARK.search("**Known since.** Confirmed: x.")
    assert SOME_MARK.search("## Refuted\n")
    assert not SOME_MARK.search("# What is unconfirmed\n\nThis was confirmed.\n")
    assert marks_of("## Known since\n\nConfirmed: x.\n\n## Consequences\n\nRefuted: y.\n") == ["Confirmed"]
