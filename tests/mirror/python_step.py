"""``python -m tests.mirror.python_step JOB ANSWER``: what one Python does with the mirrors of ``tests.mirror.pythons``.

Both are files of JSON. It goes on with mirrors that others have made and tells what stands in them. For the next Python
it makes a mirror whose digests are those of an earlier version.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from tablestore import OTSClient

from streamclient.copying import Mirror
from streamclient.destinations import DeltaDestination, IcebergDestination, PostgresDestination
from streamclient.destinations.commit import Destination, MergingDestination
from streamclient.destinations.proof.verification import verify
from streamclient.destinations.rows.change_rows import UNFIT
from tests.destinations.former_digests import as_before, digest_columns
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, running

ANSWER_SECONDS = 300.0
"""By far more than a commit takes on any machine."""


def destination_of(job: Mapping[str, Any], name: str) -> MergingDestination:
    if name == "delta":
        return DeltaDestination(f"{job['directory']}/delta", answer_seconds=ANSWER_SECONDS)
    return PostgresDestination(job["conninfo"], name, answer_seconds=ANSWER_SECONDS)


def history_of(job: Mapping[str, Any], name: str) -> IcebergDestination:
    place = job["directory"]
    catalog = SqlCatalog("drill", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
    catalog.create_namespace_if_not_exists("lake")
    return IcebergDestination(catalog, f"lake.{name}", answer_seconds=ANSWER_SECONDS)


def went_on(job: Mapping[str, Any], name: str, *, has_history: bool) -> dict[str, Any]:
    """Make a mirror or go on with it, until it has every change; what stands in it then."""
    destination = destination_of(job, name)
    history = history_of(job, name) if has_history else None
    client = OTSClient(job["endpoint"], job["access_key_id"], job["access_key_secret"], job["instance"])
    mirror = Mirror(
        client, job["table"], f"status_{name}", destination, history=history, client_config=QUICK, limits=LIMITS
    )
    with running(mirror):
        caught_up(mirror)
    compared = mirror.verify()
    found: dict[str, Any] = {
        "differences": [str(one) for one in compared.differences] + compared.unreadable,
        "rows": rows_of(destination),
    }
    if has_history:
        proof = verify(history_of(job, name), with_rows=True)
        found |= {"changes": proof.records, "findings": [str(one) for one in proof.findings]}
    destination.close()
    return found


def rows_of(destination: Destination) -> list[tuple[str, int]]:
    """Key and value of every row."""
    found = []
    for table in destination.rows():
        for row in table.to_pylist():
            key = row["k"] if row["k"] is not None else dict(row[UNFIT])["k"]["value"]
            found.append((key, row["v"]))
    return found


def known(letters: str) -> int:
    """Letters that this Python knows."""
    return Counter(unicodedata.category(one) != "Cn" for one in letters)[True]


def main() -> None:
    """The command line."""
    job = json.loads(Path(sys.argv[1]).read_text())
    answer: dict[str, Any] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "unicode": unicodedata.unidata_version,
        "known": known(job["letters"]),
        "postgres": went_on(job, "postgres", has_history=True),
        "delta": went_on(job, "delta", has_history=True),
    }
    if job["former"]:
        before = digest_columns(job["conninfo"], job["former"])
        answer["former"] = went_on(job, job["former"], has_history=False)
        answer["former"]["digests"] = [before, digest_columns(job["conninfo"], job["former"])]
    if job["next_former"]:
        answer["next_former"] = went_on(job, job["next_former"], has_history=False)
        as_before(job["conninfo"], job["next_former"], is_newer=True)
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
