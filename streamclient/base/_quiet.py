"""Loaded with the package: the SDK, imported later, does not print that it has no native codec.

It warns of that twice on every import, on every Python for which it ships none; without any configuration of logging
Python prints it. Nothing else that the SDK logs is touched.
"""

from __future__ import annotations

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Native C++")


for _name in ("tablestore.encoder", "tablestore.decoder"):
    logging.getLogger(_name).addFilter(_is_worth_saying)
