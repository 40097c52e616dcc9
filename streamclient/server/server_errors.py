"""The errors of the local Tablestore: a refusal as a value, the answer made of it, and the two errors of a start."""

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
    """The data directory cannot be used: another server holds it, another program made it, or its format is unknown."""


class RefusalSource(Enum):
    """The origin of the code and the words of a refusal, in the words of the page of refusals."""

    SUITE = "official suite"
    """A test of an official client, which is made to run against the service, expects this code and these words."""
    SEEN = "seen"
    """A client or test of a third party met this code and these words at the service."""
    DOCUMENTED = "documented"
    """The product's list of error codes has this code and these words."""
    CODE = "code documented, words ours"
    """The product's list of error codes has the code for this case, or for all cases of its kind."""
    OWN = "ours"
    """The service's answer is unknown, or the service has no such case."""

    @property
    def is_confirmed(self) -> bool:
        """Whether the service itself was seen to give this answer."""
        return self in (RefusalSource.SUITE, RefusalSource.SEEN)


@frozen
class ServiceRefusal:
    """One way in which the server refuses.

    ``refusals`` lists all of them. A handler raises the error that a call returns.
    """

    http_status: int
    code: str
    words: str
    """The text. Names in braces stand for values of the request or the table."""
    source: RefusalSource

    def __call__(self, **given: object) -> ServiceError:
        """Return the error to raise, with the given values in the words."""
        return ServiceError(self.http_status, self.code, self.words.format_map(given))
