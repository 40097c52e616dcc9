"""A filter that drops the SDK's warning about its missing native codec. The package imports this module first.

Without the codec, the SDK warns twice when it is imported, and Python prints the warnings unless the program has
configured logging. The SDK's other log lines stay.
"""

from __future__ import annotations

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Native C++")


for _name in ("tablestore.encoder", "tablestore.decoder"):
    logging.getLogger(_name).addFilter(_is_worth_saying)
