"""A filter for the SDK's warning about its missing native codec. The module is loaded with the package.

On every Python without that codec, the SDK warns twice when it is imported, and Python prints the warning unless
logging is configured. The SDK's other log lines stay.
"""

from __future__ import annotations

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Native C++")


for _name in ("tablestore.encoder", "tablestore.decoder"):
    logging.getLogger(_name).addFilter(_is_worth_saying)
