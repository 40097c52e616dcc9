"""Samples with Spark run as their documentation says they do, in the Spark of this process, which they stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample import printed_by, shown_in

from streamclient.server import LocalTablestore

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_spark_sample_leaves_a_lake_that_equals_the_table(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint)

    assert "lake and table are equal: True" in printed_by("spark_lake", str(tmp_path / "lake"))


def test_the_sample_of_the_streaming_source_prints_what_the_page_shows() -> None:
    assert printed_by("streaming_source").rstrip() == shown_in("source.md", "changes by batch").rstrip()
