"""A simulated history and its player as one HTML file. The file opens from disk, and sends no requests."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat
from streamclient.errors import ConfigurationError

HISTORY_FORMAT = KeptFormat("the history")
"""The format of a history's document, which ``streamclient.testing.simulation`` writes."""

TITLE = f"streamclient-history-{HISTORY_FORMAT.version}"

STYLES = ("player.css",)
"""The style sheets of the page. A rule of a later sheet wins over a rule of an earlier sheet."""

SCRIPTS = ("draw.js", "player.js")
"""The scripts of the page, in the order in which they run."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main id="page"><noscript>This page needs JavaScript: it draws the history below.</noscript></main>
<script type="application/json" id="history">{history}</script>
<script>{script}</script>
</body>
</html>
"""


def page_file(history: Mapping[str, object]) -> str:
    """Return the text of an HTML file that plays ``history``. The caller must save the text in UTF-8.

    ``history`` must have the format "streamclient-history-1". The file has one script and one style sheet. The
    page's security policy permits only these two, by their hashes.

    Raises:
        ConfigurationError: ``history`` is not a history, or has an unknown version.
    """
    if problem := HISTORY_FORMAT.problem_of_title(history.get(FORMAT_MEMBER), TITLE):
        raise ConfigurationError(f"this history cannot be played: {problem}")
    style, script = ("".join(_text(name) for name in names) for names in (STYLES, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    # In JSON, the escape stands for "<". Without a "<", no text of a history can end the script element.
    document = json.dumps(history, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    title = f"History of seed {history.get('seed')}"
    return PAGE.format(policy=escape(policy), title=escape(title), style=style, script=script, history=document)


def _text(name: str) -> str:
    return files("streamclient.console").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
