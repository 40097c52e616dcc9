"""The same over Spark Connect, in a process of its own, as one process has one kind of session.

Its packages need a newer protobuf than the SDK's bounds allow, so no environment has both: ``make test-connect`` puts
them in front. Without them there is nothing to test.
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
def test_transform_fold_and_cancellation_over_spark_connect(tmp_path: Path) -> None:
    places = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        [sys.executable, str(HERE / "connect_program.py"), str(tmp_path / "table")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = ["stored [(1, 2), (2, 4)]", "folded [(1, 3), (2, 2)]", "cancelled ShutdownException"]
    assert done.stdout.splitlines()[-3:] == lines
