"""The same over Spark Connect, in a process of its own, as one process has one kind of session.

Its packages come with ``pip install "pyspark[connect]"``; without them there is nothing to test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("grpc") is None or find_spec("pandas") is None, reason="Spark Connect is not installed")
def test_transform_and_cancellation_over_spark_connect(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    done = subprocess.run(
        [sys.executable, str(HERE / "connect_program.py"), str(tmp_path / "table")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["stored [(1, 2), (2, 4)]", "cancelled ShutdownException"]
