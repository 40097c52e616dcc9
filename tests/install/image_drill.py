"""``python -m tests.install.image_drill``: the programs of the image run as in a container, without an engine for it.

The image is built by ``tools/make-image``, or one that is there is taken (``--image NAME``), and its root is mounted by
buildah. Bubblewrap then runs the commands of compose.yaml in it: by the image's user, with a root that only reads, a
/tmp in memory, the image's environment alone, as process 1, in a network of their own, so that ports are as there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from tests.installed import ROOT
from tests.patience import PATIENCE_SECONDS, until

NEEDED = ("buildah", "bwrap")
ENDPOINT = "http://127.0.0.1:8180"
PLACE = Path("/mnt")
"""The root of the image for users who may not read where buildah keeps it."""

BYTES_PER_MEGABYTE = 1_000_000

LOOK = """
import errno, os
refused = []
for name in ("/opt/streamclient/x", "/app/x", "/etc/x"):
    try:
        open(name, "w")
    except OSError as error:
        refused.append(errno.errorcode[error.errno])
open("/tmp/x", "w").close()
print(os.getuid(), os.getgid(), os.getpid(), *refused)
"""

PUT = """
from streamclient.tablestore import connect
from tablestore import Row
connect().put_row("orders", Row([("id", "o-1")], [("amount", 12)]))
"""


def done(*words: str, **options: Any) -> str:
    """A command of this machine; what it printed."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout.strip()


def say(text: str) -> None:
    print(text, flush=True)


# --- the image -------------------------------------------------------------------------------------------------------


@frozen
class Image:
    """What an engine reads of the image."""

    config: Mapping[str, Any]

    @property
    def user(self) -> tuple[int, int]:
        user, _, group = self.config["User"].partition(":")
        return int(user), int(group)

    @property
    def check(self) -> Sequence[str]:
        """The words of its health check."""
        kind, *words = self.config["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        return words

    @property
    def environment(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.config["Env"])

    def require_metadata(self) -> None:
        """What bubblewrap does not obey is written as it should be."""
        labels = self.config["Labels"]
        assert self.config["StopSignal"] in ("SIGTERM", "15"), self.config["StopSignal"]
        assert {*self.config["ExposedPorts"]} == {"8180/tcp", "9100/tcp"}, self.config["ExposedPorts"]
        assert labels["org.opencontainers.image.version"] != "unknown", labels
        ours = {name.rpartition(".")[2]: text for name, text in sorted(labels.items()) if "opencontainers" in name}
        say(f"image: {', '.join(f'{name} {text}' for name, text in ours.items())}")


def inspected(name: str) -> Image:
    return Image(json.loads(done("buildah", "inspect", "--type", "image", name))["Docker"]["config"])


@contextmanager
def mounted(name: str) -> Iterator[Path]:
    container = done("buildah", "from", "--pull-never", name)
    try:
        yield Path(done("buildah", "mount", container))
    finally:
        done("buildah", "rm", container)


def bytes_below(root: Path) -> int:
    """All files, each once."""
    found = {(stat.st_dev, stat.st_ino): stat.st_size for path in root.rglob("*") for stat in [path.lstat()]}
    return sum(found.values())


def tell_sizes(name: str, root: Path) -> None:
    """Plain, and as a registry keeps it: layers that are compressed."""
    with tempfile.TemporaryDirectory() as place:
        done("buildah", "push", "--quiet", name, f"oci:{place}:image")
        blobs = Path(place) / "blobs" / "sha256"
        index = json.loads((Path(place) / "index.json").read_text())
        manifest = json.loads((blobs / index["manifests"][0]["digest"].partition(":")[2]).read_text())
    layers = [layer["size"] / BYTES_PER_MEGABYTE for layer in manifest["layers"]]
    ours = bytes_below(root / "opt" / "streamclient") / BYTES_PER_MEGABYTE
    say(f"plain: {bytes_below(root) / BYTES_PER_MEGABYTE:.0f} MB, of which {ours:.0f} MB are /opt/streamclient")
    say(f"compressed: {sum(layers):.0f} MB, in layers of {', '.join(f'{each:.1f}' for each in layers)} MB")


# --- programs in it --------------------------------------------------------------------------------------------------


class Box:
    """Runs programs of the image, which share a network and the folder of data."""

    def __init__(self, image: Image, data: Path) -> None:
        self.image, self.data = image, data

    def words(self, program: Sequence[str], variables: Mapping[str, str], *options: str) -> list[str]:
        user, group = self.image.user
        environment = {**self.image.environment, **variables}
        return [
            *("bwrap", "--ro-bind", str(PLACE), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *("--bind", str(self.data), "/data", "--chdir", self.image.config["WorkingDir"]),
            *("--unshare-all", "--share-net", "--uid", str(user), "--gid", str(group)),
            *("--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"),
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
            *options,
            *program,
        ]

    def user(self) -> dict[str, Any]:
        """Bubblewrap itself runs as the image's user, so that root's rights are not there to be used."""
        user, group = self.image.user
        return {"user": user, "group": group, "extra_groups": []}

    def ran(self, program: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(program, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            **self.user(),
        )

    def health(self) -> int:
        """The exit code of the image's own health check."""
        checked = self.ran(self.image.check)
        say(f"  health check: {checked.returncode} {checked.stdout.strip()}")
        return checked.returncode

    @contextmanager
    def running(self, program: Sequence[str], **variables: str) -> Iterator[Boxed]:
        """A program, killed at the end of the block if it runs then."""
        told, tells = os.pipe()
        process = subprocess.Popen(
            self.words(program, variables, "--info-fd", str(tells)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[tells],
            **self.user(),
        )
        os.close(tells)
        try:
            with open(told, encoding="utf-8") as info:
                text = info.read()
            yield Boxed(process, int(json.loads(text)["child-pid"]))
        finally:
            process.kill()
            process.wait()


class Boxed:
    """A program that runs; ``pid`` is its number outside."""

    def __init__(self, process: subprocess.Popen[str], pid: int) -> None:
        self.process, self.pid = process, pid
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def says(self, text: str) -> None:
        def has_come() -> bool:
            assert self.process.poll() is None or self._reader.is_alive() or text in "".join(self.lines), self.lines
            return text in "".join(self.lines)

        until(has_come, lambda: f"{text!r} in {self.lines}")

    def ended_by(self, number: signal.Signals) -> int:
        os.kill(self.pid, number)
        return self.process.wait(PATIENCE_SECONDS)


# --- the drill -------------------------------------------------------------------------------------------------------


def play(box: Box) -> None:
    """Everything, in order; a failed assertion tells what went wrong."""
    services = yaml.safe_load((ROOT / "docs" / "deploy" / "compose.yaml").read_text())["services"]
    entry = box.image.config["Entrypoint"]
    server, tables, worker = (services[name] for name in ("tablestore", "tables", "worker-a"))
    ours = {**worker["environment"], "TABLESTORE_ENDPOINT": ENDPOINT}

    looked = box.ran(["python", "-c", LOOK])
    user, group = box.image.user
    assert looked.stdout.split() == [str(user), str(group), "1", "EROFS", "EROFS", "EROFS"], looked.stdout
    say(f"user {user}, process 1, root refuses writes (EROFS), /tmp takes them")
    assert box.ran(entry).stdout.startswith("usage: streamclient "), "without arguments the commands are printed"

    say("nothing runs:")
    assert box.health() == 1
    with box.running([*entry, *server["command"]]) as serving:
        serving.says("listening on ")
        say("the server runs:")
        assert box.health() == 0
        for _ in range(2):
            made = box.ran([*tables["entrypoint"], *tables["command"]], **ours)
            assert made.returncode == 0, made.stdout
        with box.running([*entry, *worker["command"]], **ours) as working:
            working.says("metrics: ")
            working.says("reading from ")
            assert box.ran(["python", "-c", PUT], **ours).returncode == 0
            working.says("id='o-1'")
            say("a record went through the worker; both run:")
            assert box.health() == 0
            os.kill(working.pid, signal.SIGSTOP)
            say("the worker is frozen:")
            assert box.health() == 1
            os.kill(working.pid, signal.SIGCONT)
            say("it goes on:")
            until(lambda: box.health() == 0)
            code = working.ended_by(signal.SIGTERM)
            say(f"SIGTERM: the worker ends with {code}")
            # The code of a run that SIGTERM ended in order: 128 + 15.
            assert code == 143, working.lines
        code = serving.ended_by(signal.SIGTERM)
        say(f"SIGTERM: the server ends with {code}")
        assert code == 0, serving.lines
    say("nothing runs:")
    assert box.health() == 1
    with box.running([*entry, *server["command"]]) as again:
        again.says("listening on ")
        listed = box.ran([*entry, "tables", "list"], **ours)
        assert "orders_status" in listed.stdout, listed.stdout
        assert again.ended_by(signal.SIGTERM) == 0
    say("a server on the same /data has the tables")


def play_in_own_network(root: Path, image: Image) -> None:
    """Play it in a process whose network has only itself, and that has the root where the image's user may read it."""
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, *image.user)
        words = [sys.executable, "-m", __spec__.name, "--play", json.dumps(dict(image.config)), place]
        subprocess.run(
            ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(root), str(PLACE), "--unshare-net", *words],
            cwd=ROOT,
            check=True,
        )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="an image that is there; by default one is built")
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.play:
        config, data = given.play
        play(Box(Image(json.loads(config)), Path(data)))
        return 0
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        needs = " and ".join(missing) or "root"
        say(f"image-drill: it needs {needs} (Debian and Ubuntu: apt install buildah bubblewrap)")
        return 2
    name = given.image or os.environ.get("IMAGE_NAME") or "streamclient"
    if not given.image:
        subprocess.run(
            [ROOT / "tools" / "make-image"],
            env={**os.environ, "IMAGE_ENGINE": "buildah", "IMAGE_NAME": name},
            check=True,
        )
    image = inspected(name)
    image.require_metadata()
    with mounted(name) as root:
        play_in_own_network(root, image)
        tell_sizes(name, root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
