"""The official Java and Go tunnel clients as subprocesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_process import ClientProcess, build_with_maven, copied, run_build


def build_java(directory: Path) -> list[str]:
    """Compile the Java consumer; how to start it. Errors as in ``build_with_maven``."""
    return ["java", "-Xmx192m", "-XX:+UseSerialGC", "-cp", build_with_maven("tunnel_java", directory)]


def build_go(directory: Path) -> list[str]:
    """Compile the Go consumer in a copy of its sources; how to start it."""
    project = copied("tunnel_go", directory, ("go",))
    run_build(["go", "build", "-o", "consumer", "."], project, "main.go:")
    return [str(project / "consumer")]


class TunnelClientProcess(ClientProcess):
    """One running consumer."""

    def records(self) -> list[dict[str, Any]]:
        """The records that it was given; ``nanos`` says when, by the clock of this machine."""
        return [event for event in self.events if event["event"] == "record"]
