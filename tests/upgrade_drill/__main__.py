"""``python -m tests.upgrade_drill``: an earlier version and this one, beside each other on the same kept data.

Each part runs the earlier version alone, then both with ``kill -9`` and hand-overs in both directions, then this one
alone, and judges: nothing lost, doubled, or out of order within a key. Both versions are wheels in environments of
their own, which see the packages of this environment. ``--old`` is a tag or a commit, by default the last tag;
``--only`` has names of parts, with commas between them.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from tests.drill_kit import directory_of, options
from tests.installed import install
from tests.upgrade_drill import copies, fleets
from tests.upgrade_drill.stage import (
    NEW,
    OLD,
    NotAtHandError,
    Stage,
    commit_of,
    complain,
    git,
    installed_commit,
    last_tag,
    say,
)

PARTS: Mapping[str, Callable[[Stage], str]] = {
    "leases": fleets.leases,
    "parked": partial(fleets.parked, kind="table"),
    "parked-files": partial(fleets.parked, kind="files"),
    "server": fleets.server,
    "delta": partial(copies.commits, kind="delta"),
    "iceberg": partial(copies.commits, kind="iceberg"),
    "postgres": partial(copies.commits, kind="postgres"),
    "mirror": partial(copies.mirror, kind="delta"),
    "mirror-postgres": partial(copies.mirror, kind="postgres"),
    "replication": copies.replication,
    "source": partial(copies.source, by_tunnel=False),
    "source-tunnel": partial(copies.source, by_tunnel=True),
}
"""The parts, in the order in which they run; the page of formats says what they keep."""


def chosen(text: str) -> list[str]:
    """The parts in an option, with commas between them; all without it."""
    wanted = text.split(",") if text else [*PARTS]
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise SystemExit(f"--only: {unknown[0]!r} is unknown; there are {', '.join(PARTS)}")
    return wanted


def main() -> None:
    given = options(old="", only="", seed=1)
    wanted = chosen(given.only)
    commit = commit_of(given.old or last_tag())
    with directory_of("upgrade") as directory:
        new = directory / NEW
        new.mkdir()
        versions = {OLD: installed_commit(commit, directory / OLD), NEW: install(new)}
        say(f"old: {git('log', '-1', '--format=%h %cs %s', commit).decode().strip()}")
        failed = [name for name in wanted if not played(name, Stage(versions, directory / name, given.seed))]
        assert not failed, f"not clean: {', '.join(failed)}"
    say(f"upgrade drill: ok: {', '.join(wanted)}")


def played(name: str, stage: Stage) -> bool:
    """Play a part and print its line; whether it was clean, or could not be played on this machine."""
    began = time.monotonic()
    try:
        result = PARTS[name](stage)
    except NotAtHandError as error:
        say(f"{name}: not played: {error}")
        return True
    except Exception:  # the other parts are played all the same
        say(f"{name}: NOT CLEAN")
        complain(f"{traceback.format_exc()}{name}: files in {stage.directory}")
        return False
    say(f"{name}: ok: {result}; {stage.told()}; {time.monotonic() - began:.0f} s")
    return True


if __name__ == "__main__":
    main()
