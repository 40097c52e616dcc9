"""Samples with Spark run as they are written out, in the Spark of this process, which they stop."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from sample import printed_by, shown_by

from streamclient.server import LocalTablestore
from tests.patience import with_planners

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_spark_sample_leaves_a_lake_that_equals_the_table(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint)

    assert "lake and table are equal: True" in printed_by("spark_lake", tmp_path)
    assert (tmp_path / "lake").is_dir()


@pytest.mark.long
def test_the_sample_of_the_streaming_source_prints_what_the_page_shows(tmp_path: Path) -> None:
    # A folder for each time, as no sample is written over another.
    printed = with_planners(lambda: printed_by("streaming_source", Path(tempfile.mkdtemp(dir=tmp_path))))

    assert printed.rstrip() == shown_by("streaming_source").rstrip()
