"""The official Java stream client as a subprocess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_process import ClientProcess, build_with_maven


def build(directory: Path) -> str:
    """Compile the worker; returns the class path. Errors as in ``build_with_maven``."""
    return build_with_maven("java", directory)


class JavaWorker(ClientProcess):
    """One running worker."""

    def __init__(self, class_path: str, log: Path, settings: dict[str, object]) -> None:
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", class_path]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        super().__init__(str(settings["worker"]), [*command, "interop.JavaWorker"], log)

    def tag(self) -> dict[str, Any]:
        """The worker's name."""
        return {"worker": self.name}
