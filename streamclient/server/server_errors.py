"""The errors of the local Tablestore: a refusal as a value, its answer, and the two errors of its start."""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class ServiceError(Exception):
    """An error answer of the service. The request had no effect."""

    def __init__(self, http_status: int, code: str, message: str) -> None:
        super().__init__(f"{http_status} {code}: {message}")
        self.http_status = http_status
        self.code = code
        self.message = message


class DataDirectoryError(Exception):
    """The data directory cannot be used: held by another server, not ours, or of an unknown format."""


class RefusalSource(Enum):
    """The origin of the code and the words of a refusal, in the words of the page of refusals."""

    SUITE = "official suite"
    """A test of an official client, made to run against the service, expects them."""
    SEEN = "seen"
    """A third party's client or test met them at the service."""
    DOCUMENTED = "documented"
    """The product's list of error codes has them."""
    CODE = "code documented, words ours"
    """The product's list of error codes has the code for this case, or for all cases of its kind."""
    OWN = "ours"
    """Nothing is known of the service's answer, or the service has no such case."""

    @property
    def is_confirmed(self) -> bool:
        """Whether the service itself was seen to answer so."""
        return self in (RefusalSource.SUITE, RefusalSource.SEEN)


@frozen
class ServiceRefusal:
    """One way in which the server refuses. ``refusals`` lists them all; a handler raises what the refusal returns."""

    http_status: int
    code: str
    words: str
    """The text, with the names of what the request or the table puts there in braces."""
    source: RefusalSource

    def __call__(self, **given: object) -> ServiceError:
        """Return the error to raise, with the given values in the words."""
        return ServiceError(self.http_status, self.code, self.words.format_map(given))
