"""Transforms, sinks and functions that make sessions: those that cannot work are refused, before any effect."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, put

from streamclient.destinations import DeltaDestination
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory
from tests.patience import FOREVER_MILLIS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NEVER = SparkConfig(max_age_millis=FOREVER_MILLIS)


async def write_later(frame: Any, context: BatchContext) -> None:
    frame.collect()


def write_in_steps(frame: Any, context: BatchContext) -> Iterator[object]:
    yield frame.collect()


async def write_later_in_steps(frame: Any, context: BatchContext) -> Any:
    yield frame.collect()


class WritesLater:
    async def __call__(self, frame: Any, context: BatchContext) -> None:
        frame.collect()


UNABLE: dict[str, Callable[..., Any]] = {
    "coroutine": write_later,
    "generator": write_in_steps,
    "asynchronous generator": write_later_in_steps,
    "object": WritesLater(),
    "partial": functools.partial(write_later),
    "one argument": lambda frame: None,
    "three arguments": lambda frame, context, more: None,
}


@pytest.mark.parametrize("function", UNABLE.values(), ids=UNABLE)
def test_what_cannot_take_a_batch_or_would_not_run_is_refused(function: Any) -> None:
    """Nobody would await it: all changes would be checkpointed, and none written."""
    expected = "must be callable with a DataFrame and a BatchContext, neither async nor a generator"
    with pytest.raises(ConfigurationError, match=f"sink {expected}, not "):
        SparkRecordProcessorFactory(function)
    with pytest.raises(ConfigurationError, match=f"transform {expected} or None, not "):
        SparkRecordProcessorFactory(MemoryDestination(), function)


@pytest.mark.parametrize("function", [write_later, write_in_steps, write_later_in_steps])
def test_sink_that_hides_a_function_which_nobody_runs_fails_its_batch(spark: Any, function: Any) -> None:
    shard, made = StoredShard("s1", [put(1, 1, v=1)]), []

    def sink(frame: Any, context: BatchContext) -> Any:
        made.append(function(frame, context))
        return made[-1]

    with SparkRecordProcessorFactory(sink, session=spark, config=NEVER) as factory:
        run = Run(factory, shard)
        run.read(1)
        with pytest.raises(ConfigurationError, match=r"the sink returned <.* which is never run, so its work"):
            run.stop()
    assert shard.checkpoints == []
    if function is write_later:
        made[0].close()


@pytest.mark.parametrize("error", [None, ValueError("no"), "fenced", StreamClientException])
def test_shard_that_is_refused_without_an_error_of_this_package_is_not_passed_over(spark: Any, error: Any) -> None:
    """It was taken for stored, and the next batch was checkpointed behind it."""
    shard = StoredShard("s1", [put(number, number, v=number) for number in range(1, 5)])
    kept: list[int] = []

    def sink(frame: Any, context: BatchContext) -> None:
        if not kept:
            kept.append(0)
            context.refuse("s1", error)
        kept.extend(row["pk"] for row in frame.select("pk").orderBy("pk").collect())

    with SparkRecordProcessorFactory(sink, session=spark, config=NEVER) as factory:
        run = Run(factory, shard)
        run.read(2)
        factory._committer.flush(run.processor._started())
        with pytest.raises(ConfigurationError, match="error of a refused shard must be a StreamClientError, such as a"):
            run.read(2)
        again = Run(factory, shard)
        again.read(4)
        again.stop()
    assert kept == [0, 1, 2, 3, 4]


def test_class_of_destinations_is_none() -> None:
    with pytest.raises(ConfigurationError, match=r"destination must be .*, not <class '.*DeltaDestination'>"):
        SparkRecordProcessorFactory(DeltaDestination)  # type: ignore[arg-type]


def test_class_of_sessions_is_none() -> None:
    from pyspark.sql import SparkSession

    with pytest.raises(ConfigurationError, match=r"session must be a SparkSession, .*, not <class '.*SparkSession'>"):
        SparkRecordProcessorFactory(lambda frame, context: None, session=SparkSession)


def test_function_that_makes_no_session_is_told_before_anything_is_read() -> None:
    with (
        SparkRecordProcessorFactory(lambda frame, context: None, session=lambda: None) as factory,
        pytest.raises(ConfigurationError, match="session must make a SparkSession, and it made None"),
    ):
        factory.create_processor()
