"""The errors of the local Tablestore: refusals of requests, and the error of an unusable data directory."""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class ServiceError(Exception):
    """An error answer of the server. The refused request had no effect."""

    def __init__(self, http_status: int, code: str, message: str) -> None:
        super().__init__(f"{http_status} {code}: {message}")
        self.http_status = http_status
        self.code = code
        self.message = message


class DataDirectoryError(Exception):
    """The data directory cannot be used.

    Another server holds it, another program made it, its format is unknown, or its content is damaged.
    """


class RefusalSource(Enum):
    """The evidence for the code and the words of a refusal. The values are those printed on the page of refusals."""

    SUITE = "official suite"
    """A test of an official client that runs against the service expects this code and these words."""
    SEEN = "seen"
    """A client or a test of a third party received this code and these words from the service."""
    DOCUMENTED = "documented"
    """The product's list of error codes has this code and these words."""
    CODE = "code documented, words ours"
    """The product's list of error codes has the code for this case, or for a group of cases that contains it. The words
    are ours."""
    OWN = "ours"
    """The code and the words are ours: the service's answer is unknown, or the case cannot occur at the service."""

    @property
    def is_confirmed(self) -> bool:
        """Whether a client received the code and the words from the service itself."""
        return self in (RefusalSource.SUITE, RefusalSource.SEEN)


@frozen
class ServiceRefusal:
    """One kind of refusal: status, code and words. The module ``refusals`` lists all kinds.

    Calling this object returns the error for one request.
    """

    http_status: int
    code: str
    words: str
    """The text of the refusal. Names in braces stand for values of the request or the table."""
    source: RefusalSource

    def __call__(self, **given: object) -> ServiceError:
        """Return the error to raise. ``given`` are the values for the names in braces."""
        return ServiceError(self.http_status, self.code, self.words.format_map(given))
