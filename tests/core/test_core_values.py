"""Copies of frozen values with some fields changed."""

from __future__ import annotations

import attrs
import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from streamclient.core.held import Acquisition, HeldLease, Intention
from streamclient.core.values import evolve
from streamclient.model import Lease, Progress

HELD = HeldLease(Lease("shard", "stream", "me", 3), "first", 10.0, 3, 1.0, Acquisition(1))

changes = st.fixed_dictionaries(
    {},
    optional={
        "lease": st.builds(Lease, st.text(), st.text(), st.text(), st.integers()),
        "valid_until": st.floats(allow_nan=False),
        "intention": st.sampled_from(Intention),
        "promised_to": st.text(),
        "sent_requests": st.integers(),
        "is_gone": st.booleans(),
    },
)


@given(changes)
def test_a_copy_is_the_one_that_attrs_makes(changed: dict[str, object]) -> None:
    assert evolve(HELD, **changed) == attrs.evolve(HELD, **changed)


def test_the_original_stays_and_converters_run() -> None:
    lease = evolve(HELD.lease, parent_shard_ids=["a", "b"])  # type: ignore[arg-type]
    assert lease.parent_shard_ids == frozenset({"a", "b"})
    assert HELD.lease.parent_shard_ids == frozenset()


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(KeyError):
        evolve(Progress(1, 2, 3), nothing=1)


@frozen
class One:
    only: int


@frozen(kw_only=True)
class Named:
    name: str = field()


def test_a_class_of_one_field_works_and_one_without_arguments_by_position_is_refused() -> None:
    assert evolve(One(1), only=2) == One(2)
    with pytest.raises(TypeError, match="Named must have only positional arguments"):
        evolve(Named(name="a"), name="b")
