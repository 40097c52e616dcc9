"""The formats of data that outlive the program that wrote them, and the refusal of unknown versions of a format.

Each format has one ``KeptFormat`` beside the code that reads it. The page ``formats`` lists all formats. Laws:

* Data state the version of their format as a number. Data without a number have version 1.
* The number grows when an earlier reader would misread the data. If earlier readers may ignore a change, the number
  stays.
* A reader refuses an unknown number before it does anything, with the text of ``problem``.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

FORMAT_MEMBER = "format"
"""The member of a JSON document that states the version of the document's format."""

FORMAT_COLUMN = "Format"
"""The column that states the version of a row's format, in the tables that this package creates."""


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value in a JSON text that may come from outside. ``options`` are options of ``json.loads``.

    Raises:
        ValueError: the text is not JSON, or its arrays and objects are nested too deeply.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("its arrays and objects are nested too deeply") from None


@frozen
class KeptFormat:
    """A format, and the versions that this program reads. The program writes the newest version."""

    name: str
    """The name of data in this format, for messages: a noun in the singular, such as ``the snapshot``."""
    version: int = 1
    """The version that this program writes."""
    oldest: int = 1
    """The oldest version that this program reads."""

    def problem(self, stated: object) -> str:
        """Return why data of the version ``stated`` cannot be read; empty if they can be read.

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
        """Return why a document with the title ``given`` cannot be read; empty if it can be read.

        ``title`` is the title that this program writes. It ends with a hyphen and the version.
        """
        kind = title.rpartition("-")[0]
        found, _, number = given.rpartition("-") if isinstance(given, str) else ("", "", "")
        if found != kind or not number.isdecimal():
            return f"it does not say format {title!r}"
        return self.problem(int(number))
