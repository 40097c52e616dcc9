"""A command in a process of its own, where signals end it; what it prints is gathered as it comes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.operate.operate_scene import TABLE
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("--data-table", TABLE, "--status-table", "st")


class CommandProcess:
    """``streamclient`` with these words, in a folder, for the server at an endpoint; killed when it is closed."""

    def __init__(self, folder: Path, endpoint: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamclient.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TABLESTORE_ENDPOINT": endpoint},
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self.threads = [
            threading.Thread(target=into.extend, args=(source,), daemon=True)
            for source, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Its exit code, once it has printed all."""
        code = self.process.wait(PATIENCE_SECONDS)
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
        for source in (self.process.stdout, self.process.stderr):
            assert source is not None
            source.close()
        return code
