"""Credentials from a client's credentials provider, which may be user code and may fail for a while."""

from __future__ import annotations

from typing import Any

from streamclient.base.checks import done, shown
from streamclient.errors import DependencyException


def credentials_of(provider: Any) -> Any:
    """Return the credentials that a client's credentials provider gives.

    Raises:
        DependencyException: the provider raised, for example because its server does not answer. The same call may
            succeed later.
    """
    if type(provider) is RetriableProvider:  # its get_credentials calls this function for the provider that it wraps
        return provider.get_credentials()
    try:
        return done("get_credentials", provider.get_credentials())
    except DependencyException:
        raise
    except Exception as error:
        raise DependencyException(
            f"the credentials provider {shown(provider)} gave no credentials: {type(error).__name__}: {error}"
        ) from error


class RetriableProvider:
    """A wrapper of a credentials provider, for calls that the SDK sends itself.

    If the wrapped provider fails, the error says that the same call may succeed later.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        """Return the credentials of the wrapped provider, or raise the errors of ``credentials_of``."""
        return credentials_of(self._provider)
