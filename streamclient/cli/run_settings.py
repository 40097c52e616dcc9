"""The checked settings of ``streamclient run``, and the parts made from them. All mistakes are reported together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field, frozen

from streamclient.base import checks
from streamclient.base.processes import unique_name
from streamclient.base.settings import load_text
from streamclient.cli.options import CALL_TIMEOUT_SECONDS, secret_in_file
from streamclient.cli.run_layers import OPTIONS, Found, Layer, gather
from streamclient.cli.run_sections import (
    ALSO_READ,
    OBJECTS,
    SECTIONS,
    SETTINGS,
    STORES,
    Key,
    LogFormat,
    LogLevel,
    Named,
)
from streamclient.config import Backoff, CallLimits, ClientConfig, FailurePolicy, Prefetch, StreamConfig
from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException
from streamclient.loops.loop_options import status_table_of_group
from streamclient.model import OnFailure
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection
from streamclient.worker.parking.parking_files import FileParkingStore
from streamclient.worker.parking.parking_memory import MemoryParkingStore
from streamclient.worker.parking.parking_replay import object_named, processor_named

if TYPE_CHECKING:
    from streamclient.interfaces import IMetrics, IParkingStore
    from streamclient.worker import Worker

_Made = TypeVar("_Made")
Load = Callable[[str], object]
"""A function that imports a module."""

_GROUPS = {"prefetch": Prefetch, "backoff": Backoff, "limits": CallLimits}
"""The classes of the groups of settings in ``ClientConfig``, by field name."""


def import_from_here(module: str) -> object:
    """Import a module as ``python -m`` does, so that programs in the present directory are found."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return import_module(module)


@frozen
class RunParts:
    """The configurations and objects for a worker that the settings describe."""

    stream: StreamConfig
    client: ClientConfig
    objects: Mapping[Key, Any]
    """The imported objects, by the key of the setting that names the object; empty if nothing was imported."""


@define
class RunSettings:
    """The settings of a run. Each setting is checked on its own when it is read."""

    found: Found
    """The settings that were given, with their origins."""
    values: dict[Key, Any]
    """The values of the given settings that passed their checks."""
    mistakes: list[str]
    file: str = ""
    """The path of the configuration file; empty without a file."""
    text: str | None = field(default=None, repr=False)
    """The content of the configuration file; ``None`` without a file."""
    worker: str = field(factory=unique_name)
    """The name of the worker, or the common prefix of the names of several workers."""

    @classmethod
    def read(cls, arguments: argparse.Namespace, environment: Mapping[str, str]) -> RunSettings:
        """Read the settings from the arguments of the command, the environment and the configuration file.

        Objects that the settings name are not imported, and the service is not called.

        Raises:
            ConfigurationError: the configuration file cannot be read, or is not TOML.
        """
        text: str | None = arguments.config_text
        if text is None and arguments.config is not None:
            text = load_text(Path(arguments.config))
        mistakes: list[str] = []
        found = gather(arguments, text, environment, mistakes.append)
        values: dict[Key, Any] = {}
        for section in SECTIONS:
            given = {setting.name: found.get((section.name, setting.name)) for setting in section.settings}
            contents = {name: each.value for name, each in given.items() if each is not None}
            labels = {name: each.label for name, each in given.items() if each is not None}
            read = section.read(contents, {}, mistakes.append, labels)
            values.update({(section.name, name): read[name] for name in contents if name in read})
        settings = cls(found, values, mistakes, arguments.config or "", text)
        settings.worker = settings.value("run", "worker") or settings.worker
        if not arguments.is_one_of_processes:  # such a process has its own port, but the number of all processes
            settings.mistakes.extend(_missing_ports(settings))
        return settings

    # --- single settings ---------------------------------------------------------------------------------------------

    def value(self, section: str, name: str) -> Any:
        """Return the given value of a setting, or the default if no valid value was given."""
        return self.values.get((section, name), SETTINGS[section, name].default)

    @property
    def is_json_log(self) -> bool:
        """Whether the lines on standard error are JSON."""
        return self.value("log", "format") is LogFormat.JSON

    @property
    def log_level(self) -> str:
        """The name of the least severe level to log, as in ``logging``."""
        level: LogLevel = self.value("log", "level")
        return level.name

    def default(self, parts: RunParts, key: Key) -> Any:
        """Return the default of a setting that was not given. ``parts`` were made from these settings."""
        section, name = key
        owner, _, group = section.partition(".")
        made = {"stream": parts.stream, "client": parts.client, "failure": parts.client.failure_policy}.get(owner)
        if made is None or key in STORES:
            return SETTINGS[key].default
        return getattr(getattr(made, group) if group else made, name)

    def label(self, section: str, name: str) -> str:
        """Return the name of a setting for error messages.

        A setting that was given is named as it was given, for example by its option. Any other setting is named by its
        section and its name, joined by a dot.
        """
        given = self.found.get((section, name))
        return f"{section}.{name}" if given is None else given.label

    @property
    def has_own_client(self) -> bool:
        """Whether the settings name a client object, so that the settings of the connection are not used."""
        return ("stream", "client") in self.values

    @property
    def store(self) -> Key | None:
        """The setting that names the parking store; ``None`` if no setting does."""
        return next((key for key in STORES if key in self.values), None)

    def connection(self) -> Connection:
        """Return the connection that the settings describe. Settings that were not given lead to the local server.

        Raises:
            ConfigurationError: the file with the access key secret cannot be read.
        """
        names = [setting.name for setting in CONNECTION_SETTINGS]
        given = {name: self.values["connection", name] for name in names if ("connection", name) in self.values}
        path = self.value("connection", "access_key_secret_file")
        if path is not None:
            given["access_key_secret"] = secret_in_file(path)
        return Connection(**given)

    # --- the parts of a worker ---------------------------------------------------------------------------------------

    def parts(
        self, load: Load | None = None, *, is_rehearsal: bool = True, metrics: IMetrics | None = None
    ) -> RunParts:
        """Return the parts of a worker that the settings describe.

        Args:
            load: the function that imports the modules of named objects; ``None`` to import nothing and make no client.
            is_rehearsal: true to replace the named parking store by a store in memory, so that a directory of parked
                records is not created.
            metrics: the receiver of measurements; a receiver that the settings name replaces it.

        Raises:
            ConfigurationError: settings are invalid; the message lists all mistakes.
        """
        objects = {} if load is None else self._objects(load)
        client = None if load is None else self._client(objects, is_rehearsal=is_rehearsal)
        stream = self._stream(objects, client)
        policy = self._policy(objects, client, is_rehearsal=is_rehearsal)
        config = self._client_config(objects, policy, metrics)
        self.require_none_wrong()
        assert stream is not None
        assert config is not None
        return RunParts(stream, config, objects)

    def make_worker(self, metrics: IMetrics | None) -> Worker:
        """Make the worker that the settings describe, without a call to the service.

        Raises:
            ConfigurationError: settings are invalid; the message lists all mistakes.
        """
        return self.worker_of(self.parts(import_from_here, is_rehearsal=False, metrics=metrics))

    def worker_of(self, parts: RunParts) -> Worker:
        """Make the worker from ``parts``, whose objects were imported, without a call to the service.

        Raises:
            ConfigurationError: the parts do not fit together.
        """
        from streamclient.worker import Worker  # noqa: PLC0415

        factory, executor = (parts.objects.get(("run", name)) for name in ("factory", "executor"))
        return Worker(self.worker, parts.client, parts.stream, factory, executor)

    def require_none_wrong(self) -> None:
        """Raise a ``ConfigurationError`` that lists all mistakes, if there is any mistake."""
        if len(self.mistakes) == 1:
            raise ConfigurationError(self.mistakes[0])
        if self.mistakes:
            lines = (f"  {mistake}" for mistake in self.mistakes)
            raise ConfigurationError(f"{len(self.mistakes)} settings cannot work:", *lines)

    def _is_wrong(self, section: str, name: str) -> bool:
        """Return whether a setting was given but is invalid. Such a setting is among the mistakes already."""
        return (section, name) in self.found and (section, name) not in self.values

    def _made(self, section: str, kind: Callable[..., _Made], **more: Any) -> _Made | None:
        """Return the object of the class ``kind`` that a section describes; ``None`` if its settings are invalid."""
        given = [name for each, name in self.found if each == section]
        if any(self._is_wrong(section, name) for name in given):
            return None
        values = {name: self.values[section, name] for name in given if (section, name) not in OBJECTS}
        try:
            return kind(**values, **more)
        except ConfigurationError as error:
            is_of_file = any(self.found[section, name].layer is Layer.FILE for name in given)
            self.mistakes.append(f"{self.file + ': ' if is_of_file else ''}{section}.{error}")
            return None

    def _stream(self, objects: Mapping[Key, Any], client: Any) -> StreamConfig | None:
        table, status = self.value("stream", "data_table_name"), self.value("stream", "status_table_name")
        group, more = self.value("run", "group"), dict[str, Any]()
        if table is not None and status is None and group is not None:
            try:
                more["status_table_name"] = status = status_table_of_group(table, group)
            except ConfigurationError as error:
                self.mistakes.append(f"{self.label('run', 'group')}: {error}")
                return None
        missing = [name for name, value in (("data_table_name", table), ("status_table_name", status)) if value is None]
        for name in missing:
            if ("stream", name) not in self.found:
                self.mistakes.append(_how_to_name(name))
        if ("run", "factory") not in self.found and ("stream", "record_processor_factory") not in self.found:
            self.mistakes.append("name the factory of the processors: PACKAGE:FACTORY, or run.factory in the file")
        more.update(self._of("stream", objects))
        return None if missing else self._made("stream", StreamConfig, client=client, **more)

    def _of(self, section: str, objects: Mapping[Key, Any]) -> dict[str, Any]:
        return {name: each for (where, name), each in objects.items() if where == section and name != "client"}

    def _policy(self, objects: Mapping[Key, Any], client: Any, *, is_rehearsal: bool) -> FailurePolicy | None:
        """Return the failure policy; ``None`` for the default, or if the settings are invalid."""
        key, then = self.store, self.value("failure", "then")
        if then is OnFailure.PARK and key is None and not any(each in self.found for each in STORES):
            self.mistakes.append(
                f"{self.label('failure', 'then')}: PARK needs a store of parked records: --parking-table, "
                "--parking-directory, or a setting of the section parking"
            )
            return None
        if key is not None and then is not OnFailure.PARK and not self._is_wrong("failure", "then"):
            self.mistakes.append(f"{self.label(*key)} is only used if a failed record is parked: --on-failure park")
            return None
        if not any(section == "failure" for section, _ in self.found):
            return None
        store = self._store(key, objects, client, is_rehearsal=is_rehearsal)
        return self._made("failure", FailurePolicy, **({} if store is None else {"parking": store}))

    def _store(
        self, key: Key | None, objects: Mapping[Key, Any], client: Any, *, is_rehearsal: bool
    ) -> IParkingStore | None:
        if key is None:
            return None
        if not is_rehearsal and key in objects:
            named: IParkingStore = objects[key]
            return named
        try:
            if not is_rehearsal and key == ("parking", "directory"):
                return FileParkingStore(self.values[key])
            if not is_rehearsal and key == ("parking", "table") and client is not None:
                # Imported only here, because the import of the SDK is slow, and a store in files does not need it.
                from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415

                return TableParkingStore(client, self.values[key])
        except ConfigurationError as error:
            self.mistakes.append(f"{self.label(*key)}: {error}")
        return MemoryParkingStore()

    def _client_config(
        self, objects: Mapping[Key, Any], policy: FailurePolicy | None, metrics: IMetrics | None
    ) -> ClientConfig | None:
        groups = {name: self._made(f"client.{name}", kind) for name, kind in _GROUPS.items()}
        more = {**groups, "failure_policy": policy}
        given = {name: each for name, each in more.items() if each is not None}
        own = {} if metrics is None else {"metrics": metrics}
        return self._made("client", ClientConfig, **given, **{**own, **self._of("client", objects)})

    def _client(self, objects: Mapping[Key, Any], *, is_rehearsal: bool) -> Any:
        """Return the client; ``None`` if the client cannot be made.

        In a rehearsal the client's calls have a shorter time limit, because a person waits for them.
        """
        if self.has_own_client:
            for (section, _), given in self.found.items():
                if section == "connection" and given.layer is not Layer.ENVIRONMENT:
                    client = self.label("stream", "client")
                    self.mistakes.append(f"{given.label} is not used, as {client} names a client with a connection")
            return objects.get(("stream", "client"))
        if any(section == "connection" and self._is_wrong(section, name) for section, name in self.found):
            return None
        try:
            limits = {"socket_timeout": CALL_TIMEOUT_SECONDS} if is_rehearsal else {}
            return self.connection().quiet_client(**limits)
        except ConfigurationError as error:
            self.mistakes.append(str(error))
            return None

    def _objects(self, load: Load) -> dict[Key, Any]:
        objects = {}
        for key, value in self.values.items():
            if isinstance(value, Named):
                try:
                    objects[key] = self._object(key, value.text, load)
                except StreamClientError as error:
                    self.mistakes.append(str(error))
        return objects

    def _object(self, key: Key, text: str, load: Load) -> object:
        """Return the object that the setting ``key`` names as ``text``.

        Raises:
            StreamClientError: the object does not exist, or its check refuses it.
        """
        label = self.label(*key)
        is_factory = "factory" in key[1]
        try:
            made = processor_named(text, load) if is_factory else object_named(text, load, "object")
        except StreamClientException as error:
            raise StreamClientException(f"{'' if label == 'PACKAGE:FACTORY' else label + ': '}{error}") from error
        return OBJECTS[key].require(label, made)


def _missing_ports(settings: RunSettings) -> Iterator[str]:
    """Yield a mistake if the last of several processes would serve its metrics at a port that does not exist."""
    port, processes = settings.value("serve", "port"), settings.value("run", "processes")
    if not port or processes is None:  # with port 0, each process picks a free port
        return
    last = port + processes - 1
    if not checks.port.fits(last):
        label = settings.label("serve", "port")
        yield f"{label}: {processes} processes serve at the ports {port} to {last}, but the highest port is 65535"


def _how_to_name(name: str) -> str:
    key = ("stream", name)
    what = {"data_table_name": "table whose stream is consumed", "status_table_name": "table of the leases"}[name]
    also = " (or --group)" if name == "status_table_name" else ""
    return f"name the {what}: {OPTIONS[key]}{also}, {ALSO_READ[key]} in the environment, or stream.{name} in the file"
