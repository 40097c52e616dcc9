"""The formats in which data outlive the program that wrote them, and the refusal of a version that is not known.

Each format has one ``KeptFormat`` beside the code that reads it; the page ``formats`` lists all of them. Laws:

* data state the number of their version, and data that state none have version 1;
* the number grows when an earlier reader would misread the data. A change that an earlier reader may ignore raises no
  number;
* a reader refuses a number that it does not know, before any effect, with the text of ``problem``.
"""

from __future__ import annotations

from attrs import frozen

FORMAT_MEMBER = "format"
"""The member that states the version in a document of JSON."""

FORMAT_COLUMN = "Format"
"""The column that states the version in a row of a table of our own."""


@frozen
class KeptFormat:
    """A format, and the versions that this program reads. It writes the newest of them."""

    name: str
    """A noun in the singular, for messages."""
    version: int = 1
    """The version that is written."""
    oldest: int = 1
    """The first version that is read."""

    def problem(self, stated: object) -> str:
        """Return why data of the version ``stated`` cannot be read; empty if they can.

        ``None`` stands for data that state no version.
        """
        if stated is None:
            stated = 1
        if type(stated) is not int or stated < 1:
            return f"{self.name} states format {stated!r}, which is not a whole number above 0: repair or remove it"
        if self.oldest <= stated <= self.version:
            return ""
        known = f"format {self.version}" if self.oldest == self.version else f"formats {self.oldest} to {self.version}"
        writer = "the version that wrote it" + (", or a later one" if stated > self.version else "")
        return f"{self.name} has format {stated}, and this version of streamclient reads {known}: use {writer}"

    def problem_of_title(self, given: object, title: str) -> str:
        """Return why a document cannot be read whose title is ``given``; empty if it can.

        ``title`` is the one that this program writes. It ends with a hyphen and the version.
        """
        kind = title.rpartition("-")[0]
        found, _, number = given.rpartition("-") if isinstance(given, str) else ("", "", "")
        if found != kind or not number.isdecimal():
            return f"it does not say format {title!r}"
        return self.problem(int(number))
