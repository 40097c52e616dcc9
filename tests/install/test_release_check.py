"""``make release-check`` finds each way in which version, changelog, pages, documentation and wheels can disagree."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.installed import ROOT
from tools import release_check
from tools.release_check import FOLDER, checkout, package_facts, problems, version_of

VERSION = "1.2.3"
WHEEL = "streamclient-{}-cp310-abi3-manylinux2014_{}.manylinux_2_17_{}.whl"
INVENTORY = "# Sphinx inventory version 2\n# Project: streamclient\n# Version: {}\n"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def metadata(root: Path) -> str:
    extras = "".join(f"Provides-Extra: {name}\n" for name in package_facts(root)["options.extras_require"])
    readme = (root / "README.md").read_text(encoding="utf-8")
    return f"Metadata-Version: 2.4\nName: streamclient\nRequires-Python: >=3.10\n{extras}\n{readme}"


def make_files(root: Path, version: str) -> None:
    """What ``make wheels`` leaves, as far as the check looks at it."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    modules = checkout(root)
    for machine in ("x86_64", "aarch64"):
        with zipfile.ZipFile(folder / WHEEL.format(version, machine, machine), "w") as archive:
            for name, content in modules.items():
                archive.writestr(name, content)
            archive.writestr("streamclient/wire/_native.abi3.so", b"")
            archive.writestr(f"streamclient-{version}.dist-info/METADATA", metadata(root))
            archive.writestr(f"streamclient-{version}.dist-info/licenses/LICENSE", b"")
    with tarfile.open(folder / f"streamclient-{version}.tar.gz", "w:gz") as archive:
        for name, content in modules.items():
            member = tarfile.TarInfo(f"streamclient-{version}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A checkout in which everything agrees."""
    put(tmp_path / "streamclient" / "_version.py", f'"""The version."""\n\n__version__ = "{VERSION}"\n')
    put(tmp_path / "samples" / "console.py", "")
    (tmp_path / "streamclient" / "samples").symlink_to("../samples")
    put(tmp_path / "pyspark_tablestore.py", "")
    put(tmp_path / "CHANGELOG.md", f"# Changelog\n\n## {VERSION} (2026-11-30)\n\n- News.\n\n## 1.2.2 (2026-11-29)\n")
    for page in ("README.md", "docs/index.md"):
        put(tmp_path / page, "You need Python 3.10 to 3.13.\n")
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    put(tmp_path / "docs" / "_build" / "html" / "objects.inv", INVENTORY.format(VERSION))
    make_files(tmp_path, VERSION)
    return tmp_path


def replaced(file: str, old: str, new: str) -> Callable[[Path], object]:
    def replace(root: Path) -> None:
        text = (root / file).read_text(encoding="utf-8")
        assert old in text
        put(root / file, text.replace(old, new))

    return replace


def removed(file: str) -> Callable[[Path], object]:
    return lambda root: (root / file).unlink()


X86, ARM = (WHEEL.format(VERSION, machine, machine) for machine in ("x86_64", "aarch64"))

DISAGREEMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no version of a release": (
        replaced("streamclient/_version.py", VERSION, "1.2.3.dev1"),
        "_version.py says 1.2.3.dev1",
    ),
    "an older changelog": (replaced("CHANGELOG.md", f"## {VERSION}", "## 1.2.1"), "CHANGELOG.md begins with 1.2.1"),
    "a changelog without a day": (replaced("CHANGELOG.md", "2026-11-30", "unreleased"), "write the day"),
    "an empty changelog": (lambda root: put(root / "CHANGELOG.md", ""), "CHANGELOG.md has no heading"),
    "a version twice": (replaced("CHANGELOG.md", "## 1.2.2", f"## {VERSION}"), "two headings of one version"),
    "an older Python": (replaced("setup.cfg", ">=3.10\n", ">=3.9\n"), "setup.cfg requires Python >=3.9"),
    "a page with other Pythons": (replaced("README.md", "3.13", "3.12"), "README.md does not say Python 3.10 to 3.13"),
    "no documentation": (removed("docs/_build/html/objects.inv"), "the documentation is not built"),
    "old documentation": (
        replaced("docs/_build/html/objects.inv", VERSION, "1.2.2"),
        "was built for 1.2.2, not for 1.2.3",
    ),
    "no sources": (
        removed(f"{FOLDER}/streamclient-{VERSION}.tar.gz"),
        f"{FOLDER} has no streamclient-{VERSION}.tar.gz",
    ),
    "no wheel for a machine": (removed(f"{FOLDER}/{ARM}"), "no wheel of 1.2.3 for manylinux on aarch64"),
    "no wheels": (lambda root: shutil.rmtree(root / FOLDER), "no wheel of 1.2.3 for manylinux on x86_64"),
    "a wheel of another version": (
        lambda root: put(root / FOLDER / WHEEL.format("1.2.2", "x86_64", "x86_64"), ""),
        "1.2.2",
    ),
    "a module that was changed": (
        lambda root: put(root / "pyspark_tablestore.py", "x = 1\n"),
        "as pyspark_tablestore.py",
    ),
    "a sample that was changed": (lambda root: put(root / "samples" / "console.py", "x = 1\n"), "samples/console.py"),
    "a module that is new": (lambda root: put(root / "streamclient" / "new.py", ""), "as streamclient/new.py"),
    "an extra that is new": (replaced("setup.cfg", "\ndocs =", "\nmore =\n    attrs\ndocs ="), "has other extras"),
    "another README": (replaced("README.md", "You need", "You want"), "has another README.md"),
}


def test_a_release_in_which_all_agrees_has_no_problems(release: Path) -> None:
    assert list(problems(release)) == []


@pytest.mark.parametrize("disagreement", DISAGREEMENTS)
def test_a_disagreement_is_told(disagreement: str, release: Path) -> None:
    change, expected = DISAGREEMENTS[disagreement]
    change(release)

    assert any(expected in problem for problem in problems(release)), list(problems(release))


@pytest.mark.parametrize(
    "left_out", ["streamclient/wire/_native.abi3.so", f"streamclient-{VERSION}.dist-info/licenses/LICENSE"]
)
def test_a_wheel_without_a_part_is_told(left_out: str, release: Path) -> None:
    path = release / FOLDER / X86
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != left_out}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, content)

    (problem,) = problems(release)
    assert problem.startswith(f"{FOLDER}/{X86} holds no ")


def test_the_code_says_its_exit(
    release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release_check, "ROOT", release)

    assert release_check.main() == 0
    assert capsys.readouterr().out == f"version, changelog, pages, documentation and wheels agree on {VERSION}\n"
    (release / "CHANGELOG.md").unlink()
    put(release / "CHANGELOG.md", "")
    assert release_check.main() == 1


def test_this_checkout_disagrees_in_nothing_but_what_a_release_makes() -> None:
    """The day of the release, the documentation and the files in ``FOLDER`` are made for it."""
    left = [text for text in problems(ROOT) if not text.startswith((FOLDER, "the documentation"))]

    assert [text for text in left if "write the day of the release" not in text] == []
    assert version_of(ROOT) in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
