"""Which instance, with which keys: from options, from the environment, or the local server's defaults.

Every command takes the same options and looks at the same variables of the environment, and every client that this
package makes for a person is made here. Without any of them it is the client for ``streamclient server``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from streamclient.checks import host_and_port
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from tablestore import OTSClient

LOCAL_ENDPOINT = "http://127.0.0.1:8180"
"""Where ``streamclient server`` listens by default; this and the next three are that server's own defaults."""
LOCAL_INSTANCE = "local"
LOCAL_ACCESS_KEY_ID = "local-access-key-id"
LOCAL_ACCESS_KEY_SECRET = "local-access-key-secret"

CALL_TIMEOUT_SECONDS = 20.0
"""For one attempt of a command; the SDK's own default of 50 s is longer than anybody waits in front of a screen."""


@frozen
class _Option:
    name: str
    default: str | None
    text: str

    @property
    def variable(self) -> str:
        return f"TABLESTORE_{self.attribute.upper()}"

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


_CONNECTION = (
    _Option("endpoint", LOCAL_ENDPOINT, "endpoint of the instance"),
    _Option("instance", LOCAL_INSTANCE, "instance name"),
    _Option("access-key-id", LOCAL_ACCESS_KEY_ID, "key id"),
    _Option("access-key-secret", LOCAL_ACCESS_KEY_SECRET, "key secret"),
    _Option("sts-token", "", "security token of temporary keys"),
    _Option("region", "", "region, for which requests are signed with V4"),
)
_TABLES = (
    _Option("data-table", None, "table whose stream is consumed"),
    _Option("status-table", None, "table of the leases"),
)
_OPTIONS = {option.name: option for option in (*_CONNECTION, *_TABLES)}


@frozen(kw_only=True)
class Connection:
    """An instance and the keys for it."""

    endpoint: str = LOCAL_ENDPOINT
    instance: str = LOCAL_INSTANCE
    access_key_id: str = LOCAL_ACCESS_KEY_ID
    access_key_secret: str = field(default=LOCAL_ACCESS_KEY_SECRET, repr=False)
    sts_token: str = field(default="", repr=False)
    """Of temporary keys; empty for permanent ones."""
    region: str = ""
    """Requests are signed with V4 for this region; empty for the older signature."""

    def client(self, **options: Any) -> OTSClient:
        """A client of the official SDK; ``options`` go to ``OTSClient`` as they are. Calls nobody.

        Raises:
            ConfigurationError: the SDK cannot work with these values, for example with an endpoint that is no URL.
        """
        # Imported here: the SDK takes a third of a second, which --help should not cost.
        from tablestore import OTSClient  # noqa: PLC0415

        given = {"sts_token": self.sts_token or None, "region": self.region or None, **options}
        try:
            made = OTSClient(self.endpoint, self.access_key_id, self.access_key_secret, self.instance, **given)
        except Exception as error:
            raise ConfigurationError(f"endpoint {self.endpoint!r} or its keys cannot be used: {error}") from error
        host_and_port(made.host)
        return made

    def quiet_client(self, **options: Any) -> OTSClient:
        """As ``client``, for this package's own calls: it logs nothing, and in an outage each call is one try.

        Raises:
            ConfigurationError: as by ``client``.
        """
        from streamclient.tablestore.call import with_own_connection  # noqa: PLC0415
        from streamclient.wire.sdk_logging import SILENT, silence  # noqa: PLC0415

        own: OTSClient = with_own_connection(self.client(logger_name=SILENT.name, **options))
        silence(own)
        return own


def connection_parent(
    *,
    tables: Collection[str] = (),
    only: Collection[str] | None = None,
    json: str = "print one JSON document",
    is_group: bool = False,
    title: str = "connection",
) -> argparse.ArgumentParser:
    """A parent parser with the options that say where, and ``--json``: all commands have them behind their own name.

    Args:
        tables: of ``data-table`` and ``status-table``, those that the command needs.
        only: names of the options that make sense for the command; all by default.
        json: what ``--json`` does; empty for a command without it.
        is_group: whether this is for a command with actions: it takes the same options, and leaves their description
            to the actions.
        title: heading in ``--help``.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(title)
    for name, option in _OPTIONS.items():
        if name in tables or (option in _CONNECTION and (only is None or name in only)):
            shown = "" if not option.default or "secret" in name else f"; default {option.default}"
            text = f"{option.text} (environment: {option.variable}{shown})"
            # Not stored unless given: so an option may stand on either side of an action.
            help_text = argparse.SUPPRESS if is_group else text
            group.add_argument(f"--{name}", metavar="TEXT", default=argparse.SUPPRESS, help=help_text)
            if name == "access-key-secret":
                help_text = argparse.SUPPRESS if is_group else "file that holds the key secret, for nobody else to see"
                group.add_argument(f"--{name}-file", metavar="FILE", default=argparse.SUPPRESS, help=help_text)
    if json:
        help_text = argparse.SUPPRESS if is_group else json
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help_text)
    return parser


def option_value(name: str, arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """What was given for an option, else in the environment, else its default.

    Raises:
        ConfigurationError: nothing was, and there is no default; it names the option and the variable.
    """
    option = _OPTIONS[name]
    given = getattr(arguments, option.attribute, None)
    if given is None and name == "access-key-secret":
        given = _secret_in_file(getattr(arguments, "access_key_secret_file", None))
    value = given if given is not None else environment.get(option.variable, option.default)
    if value is None or (not value and option.default != ""):
        raise ConfigurationError(f"name the {option.text}: --{option.name}, or {option.variable} in the environment")
    return str(value)


def _secret_in_file(path: str | None) -> str | None:
    """What the file holds, without the line's end; other users of a machine can see what a command line holds."""
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the access key secret from {path}: {error}") from error


def connection_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """Where the options, or else the environment, say.

    Raises:
        ConfigurationError: a value is empty.
    """
    return Connection(**{option.attribute: option_value(option.name, arguments, environment) for option in _CONNECTION})


def command_client(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> OTSClient:
    """The client of a command: one that logs nothing, as commands say themselves what went wrong.

    Raises:
        ConfigurationError: a value is empty, or the SDK cannot work with it.
    """
    return connection_of(arguments, environment).quiet_client(socket_timeout=CALL_TIMEOUT_SECONDS)


def connect(**options: Any) -> OTSClient:
    """A client for what the environment names, or else for ``streamclient server`` on this machine.

    Looks at ``TABLESTORE_ENDPOINT``, ``TABLESTORE_INSTANCE``, ``TABLESTORE_ACCESS_KEY_ID``,
    ``TABLESTORE_ACCESS_KEY_SECRET``, ``TABLESTORE_STS_TOKEN`` and ``TABLESTORE_REGION``, as every command does;
    ``options`` go to ``OTSClient`` as they are. Calls nobody.

    Raises:
        ConfigurationError: a variable is set and empty, or the SDK cannot work with one.
    """
    return connection_of(argparse.Namespace()).client(**options)
