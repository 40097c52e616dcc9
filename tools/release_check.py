"""``make release-check``: checks that version, changelog, pages, documentation and the files of a release agree.

It prints a line for each disagreement, and exits with code 1 if it found one. It reads the files that ``make docs`` and
``make wheels`` have made.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
RELEASED = re.compile(r"\d+\.\d+\.\d+")
HEADING = re.compile(r"^## (\S+) \((.*)\)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
WHEELS = {"manylinux": ("x86_64", "aarch64")}
"""The platforms for which ``make wheels`` makes wheels: the beginning of the platform tag, and the machines."""

FOLDER = "build/release"
"""The folder into which ``make wheels`` puts the files of a release."""

PACKAGED = ("streamclient", "pyspark_tablestore.py")
"""The folders and files of the checkout that wheels and sources must contain."""


def version_of(root: Path) -> str:
    """Return the version that ``_version.py`` states."""
    (version,) = re.findall(r'^__version__ = "(.*)"$', (root / "streamclient" / "_version.py").read_text("utf-8"), re.M)
    return str(version)


def package_facts(root: Path) -> ConfigParser:
    """Return the parsed contents of ``setup.cfg``."""
    facts = ConfigParser()
    facts.read(root / "setup.cfg", encoding="utf-8")
    return facts


def problems(root: Path) -> Iterator[str]:
    """Yield a sentence for each disagreement in the checkout at ``root``."""
    version = version_of(root)
    if not RELEASED.fullmatch(version):
        yield f"streamclient/_version.py says {version}: a release is MAJOR.MINOR.PATCH"
    yield from changelog_problems((root / "CHANGELOG.md").read_text("utf-8"), version)
    yield from python_problems(root)
    yield from documentation_problems(root / "docs" / "_build" / "html" / "objects.inv", version)
    yield from file_problems(root, version)


def changelog_problems(text: str, version: str) -> Iterator[str]:
    """Yield the disagreements between the changelog and the version."""
    headings = HEADING.findall(text)
    if not headings:
        yield "CHANGELOG.md has no heading such as '## 1.2.3 (2030-12-31)'"
        return
    newest, when = headings[0]
    if newest != version:
        yield f"CHANGELOG.md begins with {newest}, and streamclient/_version.py says {version}"
    if not DATE.fullmatch(when):
        yield f"CHANGELOG.md says {newest} ({when}): write the day of the release, as 2030-12-31"
    names = [name for name, _ in headings]
    if len(set(names)) < len(names):
        yield "CHANGELOG.md has two headings of one version"


def python_problems(root: Path) -> Iterator[str]:
    """Yield a sentence for each disagreement about the supported versions of Python."""
    facts = package_facts(root)
    versions = re.findall(r":: Python :: (3\.\d+)$", facts["metadata"]["classifiers"], re.M)
    span = f"Python {versions[0]} to {versions[-1]}"
    required = facts["options"]["python_requires"]
    if required != f">={versions[0]}":
        yield f"setup.cfg requires Python {required}, and its classifiers begin at {versions[0]}"
    for page in ("README.md", "docs/index.md"):
        if span not in (root / page).read_text("utf-8"):
            yield f"{page} does not say {span}, as setup.cfg does"


def documentation_problems(inventory: Path, version: str) -> Iterator[str]:
    """Yield the disagreement between ``version`` and the built documentation.

    The third line of the documentation's ``inventory`` names the version for which it was built.
    """
    if not inventory.exists():
        yield "the documentation is not built: make docs"
        return
    with inventory.open("rb") as file:
        said = [file.readline().decode().strip() for _ in range(3)][-1]
    if said != f"# Version: {version}":
        yield f"the documentation was built for {said.removeprefix('# Version: ')}, not for {version}: make docs"


def file_problems(root: Path, version: str) -> Iterator[str]:
    """Yield the disagreements between the checkout and the files in ``FOLDER``."""
    folder = root / FOLDER
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    sources = f"streamclient-{version}.tar.gz"
    wheels = [
        name for name in found if name.startswith(f"streamclient-{version}-cp310-abi3-") and name.endswith(".whl")
    ]
    if sources not in found:
        yield f"{FOLDER} has no {sources}: make wheels"
    for kind, machines in WHEELS.items():
        for machine in machines:
            if not any(f"-{kind}" in name and name.endswith(f"_{machine}.whl") for name in wheels):
                yield f"{FOLDER} has no wheel of {version} for {kind} on {machine}: make wheels"
    yield from (f"{FOLDER}/{name} does not belong to {version}" for name in found if name not in {sources, *wheels})
    expected = checkout(root)
    for name in wheels:
        with zipfile.ZipFile(folder / name) as archive:
            contents = {entry: archive.read(entry) for entry in archive.namelist()}
        yield from content_problems(f"{FOLDER}/{name}", contents, expected)
        yield from metadata_problems(root, f"{FOLDER}/{name}", contents)
    if sources in found:
        yield from content_problems(f"{FOLDER}/{sources}", unpacked(folder / sources), expected)


def checkout(root: Path) -> Mapping[str, bytes]:
    """Return the modules that are packaged, by their names in a wheel."""
    found = {}
    for name in PACKAGED:
        top = root / name
        # rglob does not follow a link to a folder, and the samples are such a link.
        parts = [top] if top.is_file() else [top, *(path for path in top.iterdir() if path.is_symlink())]
        files = [path for part in parts for path in ([part] if part.is_file() else part.rglob("*.py"))]
        found.update({path.relative_to(root).as_posix(): path.read_bytes() for path in files})
    return found


def unpacked(sources: Path) -> Mapping[str, bytes]:
    """Return the files in the archive ``sources``, by their names without the top folder of the archive."""
    with tarfile.open(sources) as archive:
        return {
            str(PurePosixPath(*PurePosixPath(member.name).parts[1:])): file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def content_problems(name: str, contents: Mapping[str, bytes], expected: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the disagreement between the modules of the checkout and the modules in the archive ``name``."""
    modules = {entry for entry in contents if entry.endswith(".py") and entry.startswith(PACKAGED)}
    differing = {entry for entry in modules | set(expected) if contents.get(entry) != expected.get(entry)}
    if differing:
        yield f"{name} differs from the checkout in {len(differing)} modules, as {min(differing)}: make wheels"


def metadata_problems(root: Path, name: str, contents: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the disagreements between a wheel's metadata and the checkout."""
    facts = package_facts(root)
    (data,) = [content for entry, content in contents.items() if entry.endswith(".dist-info/METADATA")]
    said = BytesParser().parsebytes(data)
    extras = set(facts["options.extras_require"])
    if set(said.get_all("Provides-Extra", [])) != extras:
        yield f"{name} has other extras than setup.cfg: make wheels"
    if said["Requires-Python"] != facts["options"]["python_requires"]:
        yield f"{name} requires Python {said['Requires-Python']}, setup.cfg {facts['options']['python_requires']}"
    payload = said.get_payload(decode=True)
    if isinstance(payload, bytes) and payload.strip() != (root / "README.md").read_bytes().strip():
        yield f"{name} has another README.md: make wheels"
    if not any(entry.endswith("licenses/LICENSE") for entry in contents):
        yield f"{name} holds no LICENSE"
    if "streamclient/wire/_native.abi3.so" not in contents:
        yield f"{name} holds no compiled codec: make wheels"


def main() -> int:
    """Print the disagreements; return 1 if there is at least one."""
    found = list(problems(ROOT))
    print(*found or [f"version, changelog, pages, documentation and wheels agree on {version_of(ROOT)}"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
