"""Credentials as a provider of the user's own gives them, which may fail for a while."""

from __future__ import annotations

from typing import Any

from streamclient.base.checks import done, shown
from streamclient.errors import DependencyException


def credentials_of(provider: Any) -> Any:
    """What a client's provider gives, which may be a user's own.

    Raises:
        DependencyException: it raises, as while the server that it asks is away: the same call may succeed later.
    """
    try:
        return done("get_credentials", provider.get_credentials())
    except DependencyException:
        raise
    except Exception as error:
        raise DependencyException(
            f"the credentials provider {shown(provider)} gave no credentials: {type(error).__name__}: {error}"
        ) from error


class PatientProvider:
    """A provider whose failures say that the same call may succeed later, for what the SDK sends by itself."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        """See ``credentials_of``."""
        return credentials_of(self._provider)
