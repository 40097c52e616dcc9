"""Loads the SDK before warnings become errors: it warns on import where its native codec has no build."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)
    import tablestore  # noqa: F401 -- imported for its side effect, once, here
