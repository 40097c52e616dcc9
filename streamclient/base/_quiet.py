"""Silence the SDK's warning about its missing native codec; loaded with the package.

The SDK warns twice on every import, on every Python without that codec, and Python prints the warning unless logging is
configured. The SDK's other log lines stay.
"""

from __future__ import annotations

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Native C++")


for _name in ("tablestore.encoder", "tablestore.decoder"):
    logging.getLogger(_name).addFilter(_is_worth_saying)
