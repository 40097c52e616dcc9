"""The official Node SDK, unmodified, from its package registry: every table and row operation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from streamclient.server import LocalTablestore
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SDK_VERSION = "5.6.5"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "streamclient-tests" / f"node-{SDK_VERSION}"
"""Outside the checkout and kept between runs."""

UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH")
"""What npm says when there is no registry to talk to."""


def install() -> None:
    """Put the SDK into the cache; complete or not at all, as two test runs may do it at the same time."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as fresh:
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", fresh, f"tablestore@{SDK_VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the npm registry did not answer within {PATIENCE_SECONDS:.0f} s")
        if done.returncode and any(code in done.stderr for code in UNREACHABLE):
            pytest.skip(f"the npm registry is out of reach: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        with suppress(OSError):  # another run was faster: its copy is as good
            (Path(fresh) / "node_modules").rename(CACHE)


@pytest.fixture(scope="module")
def node_path() -> Path:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    if not CACHE.exists():
        install()
    return CACHE


def test_every_operation_of_the_node_sdk_works(node_path: Path, local: LocalTablestore) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "NODE_PATH": str(node_path),
        "NODE_NO_WARNINGS": "1",
        "ENDPOINT": local.endpoint,
        "INSTANCE": local.instance,
        "ACCESS_KEY_ID": local.access_key_id,
        "ACCESS_KEY_SECRET": local.access_key_secret,
    }
    script = Path(__file__).with_name("operations.js")
    done = subprocess.run(
        ["node", str(script)], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    failed = {name: result for name, result in results.items() if result != "ok"}
    assert not failed, "\n".join(f"{name}: {result}" for name, result in failed.items())
    assert len(results) >= 20
