"""Numbers that are kept up to date row by row are those that a count of all rows gives."""

from __future__ import annotations

from collections import Counter

from attrs import evolve
from holdings_driver import row
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.plan.beside_java import count_leases
from streamclient.core.sightings import LeaseView
from streamclient.model import Lease

DURATION = 20.0
NAMES = st.sampled_from(["", "me", "x", "y"])
ROWS = st.builds(
    lambda key, owner, counter, stealer, checkpoint: row(key, owner, counter, stealer=stealer, checkpoint=checkpoint),
    st.sampled_from("abcd"),
    NAMES,
    st.integers(0, 2),
    NAMES,
    st.sampled_from(["i1", "SHARD_END"]),
)
SCANS = st.tuples(st.just("scan"), st.lists(ROWS, max_size=4, unique_by=lambda lease: lease.lease_key), st.booleans())
STEPS = st.lists(
    st.tuples(
        SCANS
        | st.tuples(st.just("note"), ROWS, st.none())
        | st.tuples(st.just("absent"), st.sampled_from("abcd"), st.none()),
        st.sampled_from([0.0, 1.0, 9.0, 25.0]),
    ),
    max_size=15,
)


def step(view: LeaseView, what: tuple[str, object, object], now: float) -> None:
    kind, given_, is_repeated = what
    if kind == "note":
        view.note(given_, now)  # type: ignore[arg-type]
    elif kind == "absent":
        view.note_absent(given_)  # type: ignore[arg-type]
    else:
        rows: list[Lease] = given_  # type: ignore[assignment]
        known = [evolve(lease) for lease in view.rows.values()] if is_repeated else []
        names = {lease.lease_key for lease in known}
        view.observe([*known, *(lease for lease in rows if lease.lease_key not in names)], now, now)


def counted(view: LeaseView, now: float) -> dict[str, Counter[str]]:
    """All the numbers, counted over all rows."""
    numbers: dict[str, Counter[str]] = {name: Counter() for name in ("credits", "unread", "settled", "owners", "names")}
    for key, sighting in view.sightings.items():
        lease = sighting.row
        numbers["names"].update(name for name in (lease.owner, lease.stealer) if name)
        if view.is_expired(key, now):
            continue
        holder = lease.stealer or lease.owner
        numbers["credits"][holder] += bool(holder)
        numbers["unread"][holder] += bool(holder) and not lease.is_finished
        numbers["owners"][lease.owner] += bool(lease.owner)
        numbers["settled"][lease.owner] += bool(lease.owner) and not lease.stealer
    return {name: Counter({key: n for key, n in counter.items() if n}) for name, counter in numbers.items()}


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_the_census_is_what_a_count_of_all_rows_gives(steps: list[tuple[tuple[str, object, object], float]]) -> None:
    view, now = LeaseView("me", DURATION), 0.0
    for what, seconds in steps:
        now += seconds
        step(view, what, now)
        view.counts.tell_time(now)
        expected = counted(view, now)

        assert {name: dict(getattr(view.counts, name)) for name in expected} == expected
        assert sorted(view.counts.expired) == [key for key in sorted(view.sightings) if view.is_expired(key, now)]
        for name in ("me", "x", "y"):
            owned = [key for key in sorted(view.rows) if view.rows[key].owner == name]
            wanted = [key for key in sorted(view.rows) if view.rows[key].stealer == name]
            assert [sighting.row.lease_key for sighting in view.counts.owned_by(name)] == owned
            assert [sighting.row.lease_key for sighting in view.counts.wanted_by(name)] == wanted


@settings(deadline=None, max_examples=300)
@given(STEPS, st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["me", "x", "z"]), max_size=3))
def test_a_tally_counts_each_row_for_whoever_will_have_it(
    steps: list[tuple[tuple[str, object, object], float]], destined: dict[str, str]
) -> None:
    view, now = LeaseView("me", DURATION), 0.0
    for what, seconds in steps:
        now += seconds
        step(view, what, now)
    counts, unfinished, settled, awaited = Counter(), Counter(), Counter(), Counter()
    for key, sighting in view.sightings.items():
        lease, is_expired = sighting.row, view.is_expired(key, now)
        holder = destined.get(key) or ("" if is_expired else lease.stealer or lease.owner)
        if not holder:
            continue
        counts[holder] += 1
        unfinished[holder] += not lease.is_finished
        settled[lease.owner] += not is_expired and holder == lease.owner and not lease.stealer
        awaited[lease.owner] += not is_expired and holder == "me" and lease.owner not in ("", "me")
    tally = count_leases(view, "me", destined, now)

    assert +Counter(tally.counts) == +counts
    assert +Counter(tally.unfinished) == +unfinished
    assert +Counter(tally.settled) == +settled
    assert +Counter(tally.awaited) == +awaited
    assert "me" in tally.counts
    assert min(tally.counts.values()) >= 0
