"""What CONTRIBUTING.md and SECURITY.md tell people to run, and to read, is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamclient.cli.main import make_parser
from tests.installed import ROOT

PAGES = ("CONTRIBUTING.md", "SECURITY.md")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", text_of("Makefile"), re.MULTILINE))


def named_targets(text: str) -> set[str]:
    """Those in code, ``make x`` in a sentence that is none included."""
    return set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, "README.md", "docs/deploying.md"])
def test_every_target_that_a_page_names_is_in_the_makefile(page: str) -> None:
    named = named_targets(text_of(page))

    assert named
    assert named - targets() == set()


def test_a_target_that_does_not_exist_is_noticed() -> None:
    """The check itself can fail."""
    assert named_targets("Run `make nonsense`, or\n$ make more   # x") == {"nonsense", "more"}
    assert "nonsense" not in targets()


def test_the_help_of_make_names_every_target() -> None:
    told = set(re.findall(r'echo "make ([a-z-]+)', text_of("Makefile")))

    assert targets() - told - {"help", "lint", "style", "types"} == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        file, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.*)$", text_of(file), re.MULTILINE)

        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize("page", PAGES)
def test_files_in_code_of_a_page_exist(page: str) -> None:
    named = re.findall(r"`((?:\.?[\w-]+/)*[\w.-]+\.(?:py|md|yml)|\.ci/\w+)`", text_of(page))

    for name in named:
        assert (ROOT / name).exists() or (ROOT / ".github" / "workflows" / name).exists(), name


def test_the_readme_links_the_pages_and_they_are_short() -> None:
    for page in PAGES:
        assert f"]({page})" in text_of("README.md")
        assert text_of(page).count("\n") <= 60


def test_the_option_that_a_page_names_exists() -> None:
    (option,) = set(re.findall(r"`(--[\w-]+)`", text_of("SECURITY.md")))

    assert make_parser(["tables"]).parse_args(["tables", "list", option, "file"]).access_key_secret_file == "file"


def test_where_to_set_the_version_is_where_it_is() -> None:
    steps = text_of("CONTRIBUTING.md").split("## Release\n", 1)[1]

    assert "`streamclient/_version.py`" in steps
    assert "__version__" in (ROOT / "streamclient" / "_version.py").read_text(encoding="utf-8")
    assert Path(ROOT, ".github", "workflows", "release.yml").exists()
