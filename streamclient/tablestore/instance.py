"""The connection settings of a Tablestore instance: from options, from the environment, or the local server's defaults.

Every command takes the same options and reads the same environment variables. All commands make their clients by this
module. Without options and variables, a client calls the local server that ``streamclient server`` starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.base.checks import Check
from streamclient.base.settings import Setting
from streamclient.errors import ConfigurationError, is_local

if TYPE_CHECKING:
    from tablestore import OTSClient

LOCAL_ENDPOINT = "http://127.0.0.1:8180"
"""The default endpoint of ``streamclient server``. The next three constants are also defaults of that server."""
LOCAL_INSTANCE = "local"
LOCAL_ACCESS_KEY_ID = "local-access-key-id"
LOCAL_ACCESS_KEY_SECRET = "local-access-key-secret"


def _why_no_endpoint(value: object) -> str:
    why = checks.why_unreachable(value) if isinstance(value, str) else "it is not a string"
    if why:
        return why
    scheme, _, *rest = urlsplit(str(value))
    if scheme not in ("http", "https"):
        return f"its scheme is {scheme!r}"
    more = [part for part in rest if part.strip("/")]
    return f"{more[0]!r} is not part of an endpoint" if more else ""


_endpoint = Check("http(s)://host[:port]", lambda value: not _why_no_endpoint(value), because=_why_no_endpoint)


def _origin(endpoint: str) -> str:
    """Return ``endpoint`` as the SDK needs it. The SDK would put a slash at the end before the path of each call."""
    if not _endpoint.fits(endpoint):
        return endpoint  # the validator refuses it
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}"


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _without_control(check: Check) -> Check:
    """Return a check that also refuses control characters, because each value becomes part of an HTTP header."""

    def why(value: object) -> str:
        found = _CONTROL.search(value) if isinstance(value, str) else None
        return check.because(value) or (f"its character {found.start()} is a control character" if found else "")

    return evolve(check, fits=lambda value: check.fits(value) and not why(value), because=why)


_text, _secret = _without_control(checks.text), _without_control(checks.secret)
_any_text, _any_secret = _without_control(checks.any_text), evolve(_without_control(checks.any_text), hides=True)

CONNECTION_SETTINGS = tuple(
    Setting(
        name,
        text,
        check,
        default=default,
        is_needed=default != "",
        spared_by=None if name == "endpoint" else ("endpoint", is_local),
        variable=f"TABLESTORE_{name.upper()}",
    )
    for name, text, check, default in (
        ("endpoint", "endpoint of the instance", _endpoint, LOCAL_ENDPOINT),
        ("instance", "instance name", _text, LOCAL_INSTANCE),
        ("access_key_id", "key id", _text, LOCAL_ACCESS_KEY_ID),
        ("access_key_secret", "key secret", _secret, LOCAL_ACCESS_KEY_SECRET),
        ("sts_token", "security token of temporary keys", _secret, ""),
        ("region", "region, for which requests are signed with V4", _text, ""),
    )
)
"""The settings of a connection. Configuration files and Spark's options must name all of them except the security token
and the region; for a local server they need only the endpoint. Commands and ``connect`` need no setting, because the
local server is their default."""


def chosen(setting: Setting, given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return ``given``; if it is ``None``, the setting's environment variable; if that is not set, the default.

    Raises:
        ConfigurationError: the value is empty although the setting needs a value.
    """
    value = given if given is not None else environment.get(setting.variable, setting.default)
    if value is None or (not value and setting.default != ""):
        option = setting.name.replace("_", "-")
        raise ConfigurationError(f"name the {setting.text}: --{option}, or {setting.variable} in the environment")
    return str(value)


@checks.explains_names
@frozen(kw_only=True)
class Connection:
    """The endpoint, the name and the access keys of a Tablestore instance."""

    endpoint: str = field(default=LOCAL_ENDPOINT, converter=_origin, validator=_endpoint)
    """The endpoint as ``http(s)://host[:port]``. A slash at the end is accepted and removed."""
    instance: str = field(default=LOCAL_INSTANCE, validator=_text)
    access_key_id: str = field(default=LOCAL_ACCESS_KEY_ID, validator=_text)
    access_key_secret: str = field(default=LOCAL_ACCESS_KEY_SECRET, repr=False, validator=_secret)
    sts_token: str = field(default="", repr=False, validator=_any_secret)
    """The security token of temporary keys; empty for permanent keys."""
    region: str = field(default="", validator=_any_text)
    """The region for signatures of version 4; empty to sign requests with version 2."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Connection:
        """Make the connection from environment variables. For a variable that is not set, use the local server's value.

        Raises:
            ConfigurationError: a variable is empty although its setting needs a value, or its value is invalid.
        """
        return cls(**{setting.name: chosen(setting, None, environment) for setting in CONNECTION_SETTINGS})

    def client(self, **options: Any) -> OTSClient:
        """Make a client of the official SDK, and pass ``options`` to ``OTSClient``. This does not call the service.

        Raises:
            ConfigurationError: the SDK cannot work with these values.
        """
        # The import is here because the SDK takes a third of a second to load, and --help should not wait for it.
        from tablestore import OTSClient  # noqa: PLC0415

        given = {"sts_token": self.sts_token or None, "region": self.region or None, **options}
        try:
            return OTSClient(self.endpoint, self.access_key_id, self.access_key_secret, self.instance, **given)
        except Exception as error:
            raise ConfigurationError(f"endpoint {self.endpoint!r} or its keys cannot be used: {error}") from error

    def quiet_client(self, **options: Any) -> OTSClient:
        """Make a client for this package's own calls. It logs nothing, and in an outage each call is one attempt.

        Raises:
            ConfigurationError: the SDK cannot work with these values.
        """
        from streamclient.tablestore.signed_calls import with_own_connection  # noqa: PLC0415
        from streamclient.wire.sdk_logging import SILENT, silence  # noqa: PLC0415

        own: OTSClient = with_own_connection(self.client(logger_name=SILENT.name, **options))
        silence(own)
        return own


def connect(**options: Any) -> OTSClient:
    """Make a client for the instance that environment variables name, by default for the local server.

    As every command does, the function reads ``TABLESTORE_ENDPOINT``, ``TABLESTORE_INSTANCE``,
    ``TABLESTORE_ACCESS_KEY_ID``, ``TABLESTORE_ACCESS_KEY_SECRET``, ``TABLESTORE_STS_TOKEN`` and ``TABLESTORE_REGION``.
    It passes ``options`` to ``OTSClient`` unchanged, and does not call the service.

    Raises:
        ConfigurationError: a variable is set and empty or invalid, or the SDK cannot work with a variable's value.
    """
    return Connection.of_environment().client(**options)
