"""Logs as JSON: one document on one line, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from streamclient.base import logs
from streamclient.cli.run_fleet import as_json
from streamclient.cli.terminal.json_log import JsonLogHandler
from tests.test_texts_of_others import EVIL


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def documents(
    log: Callable[[logging.Logger], None], encoding: str = "utf-8", worker: str = "w"
) -> list[dict[str, Any]]:
    """What is printed while something is logged, line by line."""
    printed = io.BytesIO()
    logger = logs.logger("streamclient.worker.worker")
    handler = JsonLogHandler(worker)
    logger.addHandler(handler)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logger, "propagate", False)  # the handlers of the tests tell of arguments that do not fit
        # Named, as a stream that nothing refers to closes what it writes to.
        stream = io.TextIOWrapper(printed, encoding=encoding, errors="backslashreplace")
        patched.setattr(sys, "stderr", stream)
        try:
            log(logger)
            stream.flush()
        finally:
            logger.removeHandler(handler)
    lines = printed.getvalue().decode(encoding).splitlines()
    assert all(line.isprintable() for line in lines)
    return [json.loads(line) for line in lines]


def test_an_entry_has_the_fields_of_the_page() -> None:
    (entry,) = documents(lambda logger: logger.warning("shard %s: late", "s1", extra=logs.of_shard("s1")))

    assert entry.pop("time")[-5] == "."
    assert entry == {
        "level": "warning",
        "logger": "streamclient.worker.worker",
        "message": "shard s1: late",
        "worker": "w",
        "shard": "s1",
    }


def test_the_time_is_in_utc_with_millis() -> None:
    handler = JsonLogHandler()
    record = logging.LogRecord("x", logging.INFO, "", 0, "x", None, None)
    record.created = 1_769_860_800.25
    with pytest.MonkeyPatch.context() as patched:
        printed = io.StringIO()
        patched.setattr(sys, "stderr", printed)
        handler.emit(record)

    assert json.loads(printed.getvalue())["time"] == "2026-01-31T12:00:00.250Z"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("text", [EVIL, "two\nlines", "\u2028", "\U0001f600 Grüße 你好", "\ud800", '{"level": "x"}'])
def test_whatever_is_logged_is_one_line(text: str, encoding: str) -> None:
    def log(logger: logging.Logger) -> None:
        logger.error("%s", text, extra=logs.of_shard(text))

    (entry,) = documents(log, encoding, worker=text)

    assert entry["shard"] == text
    assert entry["worker"] == text


def test_an_error_has_its_type_its_text_and_its_stack_in_a_field_each() -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("it failed")

    (entry,) = documents(log)

    assert (entry["message"], entry["error_type"], entry["error"]) == ("it failed", "ValueError", "two\nlines")
    assert entry["stack"].startswith("Traceback (most recent call last):")
    assert "test_json_log.py" in entry["stack"]


def test_an_error_without_a_text_and_arguments_that_do_not_fit_are_told_all_the_same() -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise Unspeakable
        except Unspeakable:
            logger.exception("it failed")
        logger.error("%d records", "many")

    first, second = documents(log)

    assert (first["error_type"], first["error"]) == ("Unspeakable", "text that cannot be told")
    assert second["message"].startswith("%d records, whose arguments do not fit: TypeError: ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"message": "x", "worker": "w-1"}', {"message": "x", "worker": "w-1"}),
        (b'{"order": 7}', {"order": 7, "worker": "w-1"}),
        (b"plain \xff", {"level": "info", "logger": "stdout", "message": "plain \\xff", "worker": "w-1"}),
        (b"[1, 2]", {"level": "info", "logger": "stdout", "message": "[1, 2]", "worker": "w-1"}),
        (b"", {"level": "info", "logger": "stdout", "message": "", "worker": "w-1"}),
    ],
)
def test_a_line_of_a_process_is_passed_on_as_json_with_its_worker(line: bytes, expected: dict[str, Any]) -> None:
    passed = as_json("w-1", "stdout")(line)
    document = json.loads(passed)
    document.pop("time", None)

    assert document == expected
    assert b"\n" not in passed
