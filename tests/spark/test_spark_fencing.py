"""A writer that was frozen in the middle of publishing changes nothing, wherever it wakes up. No Spark here."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_in_memory import (
    ROOT,
    Actor,
    Crashed,
    MemoryFiles,
    SteppedFiles,
    World,
    a_range,
    commit,
    publisher_of,
    read_view,
)

from streamclient.errors import FencedException, StreamClientException
from streamclient.spark.context import BatchContext
from streamclient.spark.layout import Edition, Fence, counting, newest, next_edition, superseded


def steps_of(actor: Actor) -> int:
    """How many steps it takes if nobody is in its way."""
    count = 0
    while not actor.is_done:
        actor.step()
        count += 1
    return count


def assert_sound(world: World) -> None:
    """The view has nothing twice, and everything whose checkpoint is stored."""
    seen = world.view()
    twice = [number for number, count in Counter(seen).items() if count > 1]

    assert twice == [], world.files.names(SHARD_PATH)
    assert world.acknowledged <= set(seen), sorted(world.acknowledged - set(seen))


SHARD_PATH = f"{ROOT}/_shard=shard%201"
ZOMBIE_STEPS = steps_of(World().take([4]))
"""From the fence to the checkpoint."""


def test_the_scene_has_the_steps_that_matter() -> None:
    """Fence, its check, the job, the place, the manifest, the check before the rename, the rename, the clean-up."""
    assert ZOMBIE_STEPS >= 9


@pytest.mark.slow
@pytest.mark.parametrize("frozen_at", range(ZOMBIE_STEPS))
def test_frozen_writer_changes_nothing_wherever_it_wakes_up(frozen_at: int) -> None:
    """It freezes after each number of steps, and wakes up after each number of steps of its successor."""
    successor_steps = steps_of(World().take([6, 3]))
    for woken_at in range(successor_steps + 1):
        world = World()
        zombie = world.take([4, 4])
        for _ in range(frozen_at):
            zombie.step()
        successor = world.take([6, 3])
        for _ in range(woken_at):
            successor.step()
            assert_sound(world)
        while not zombie.is_done:
            zombie.step()
            assert_sound(world)
        successor.finish()

        assert successor.error is None, (frozen_at, woken_at)
        assert zombie.error is None or isinstance(zombie.error, FencedException), (frozen_at, woken_at)
        assert world.view() == list(range(9)), (frozen_at, woken_at)
        assert world.row.checkpoint == 9


def test_zombie_that_wakes_up_late_is_refused_or_removes_what_it_did() -> None:
    """Only between its last look at the fences and its rename does it publish, and then it finds its successor."""
    refused = []
    for frozen_at in range(1, ZOMBIE_STEPS):
        world = World()
        zombie = world.take([4])
        for _ in range(frozen_at):
            zombie.step()
        world.take([6, 3]).finish()
        zombie.finish()
        refused.append(isinstance(zombie.error, FencedException))
        starts = world.files.names(SHARD_PATH)

        assert [len(world.files.names(f"{SHARD_PATH}/{start}")) for start in starts] == [1, 1]
        assert world.files.names(f"{ROOT}/_fence/shard%201")[-1] == "epoch-2-of-shop"
    last_look = refused.index(False)
    assert refused == [True] * last_look + [False] * 3, (
        "not refused: before the rename, after it, before the checkpoint"
    )


@pytest.mark.slow
def test_reader_finds_a_state_that_the_lake_had() -> None:
    """A reader stands still after each number of steps while a successor supersedes what was listed and goes on."""
    for stands_at in range(30):
        for successor_steps in range(0, 30, 3):
            world = World()
            crashed = world.take([4])
            for _ in range(ZOMBIE_STEPS - 1):
                crashed.step()
            states = [world.view()]
            seen: list[int] = []
            reader = stepped_reader(world, seen)
            for _ in range(stands_at):
                reader.step()
            successor = world.take([6, 3])
            for _ in range(successor_steps):
                successor.step()
                states.append(world.view())
            reader.finish()
            crashed.crash()
            successor.crash()

            assert seen in states, (stands_at, successor_steps, seen)


class Step:
    """What may happen next in a random history."""

    def __init__(self, kind: str, number: int = 0, sizes: list[int] | None = None) -> None:
        self.kind, self.number, self.sizes = kind, number, sizes or []

    def __repr__(self) -> str:
        return f"Step({self.kind!r}, {self.number}, {self.sizes})"


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=3)
STEPS = st.one_of(
    st.builds(Step, st.just("go"), st.integers(0, 5), st.lists(st.just(1), min_size=1, max_size=9)),
    st.builds(Step, st.just("take"), st.just(0), SIZES),
    st.builds(Step, st.just("restart"), st.just(0), SIZES),
    st.builds(Step, st.just("trim"), st.integers(1, 3)),
    st.builds(Step, st.just("read")),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_of_owners_leaves_each_record_once(steps: list[Step]) -> None:
    """Takes, freezes, crashes, restarts, and a stream that forgets: at each step the view is sound."""
    world = World()
    actors = [world.take([2])]
    try:
        for step in steps:
            play(world, actors, step)
            assert_sound(world)
        last = world.take([5] * 30)
        last.finish()
        for actor in actors:
            actor.finish()
        assert_sound(world)
        assert last.error is None
        assert set(range(world.row.checkpoint)) - set(world.view()) <= set(range(world.trimmed_to))
    finally:
        for actor in actors:
            actor.crash()
    assert all(isinstance(actor.error, FencedException | Crashed | None) for actor in actors)


def play(world: World, actors: list[Actor], step: Step) -> None:
    if step.kind == "take":
        actors.append(world.take(step.sizes))
    elif step.kind == "restart":
        # One thread commits: a new processor's first batch comes after the old one's last.
        actors[-1].crash()
        actors.append(world.restart(step.sizes))
    elif step.kind == "trim":
        world.trim(step.number)
    elif step.kind == "go":
        for _ in step.sizes:
            actors[step.number % len(actors)].step()
    else:
        read_while_others_write(world, actors)


def read_while_others_write(world: World, actors: list[Actor]) -> None:
    """A reader that takes a step, then everybody else does: it must find a state that the lake could have had."""
    before = set(world.acknowledged)
    seen: list[int] = []
    reader = stepped_reader(world, seen)
    for _ in range(200):
        reader.step()
        actors[-1].step()
    reader.finish()

    assert reader.error is None, reader.error
    assert max(Counter(seen).values(), default=1) == 1, seen
    assert before <= set(seen)


def stepped_reader(world: World, seen: list[int]) -> Actor:
    """Each listing and each file is a step."""
    return Actor(lambda actor: seen.extend(read_view(SteppedFiles(world.files, actor.pause))))


def test_second_application_is_refused() -> None:
    files = MemoryFiles()
    commit(files, a_range(3, 0, 4), [0, 1, 2, 3])

    with pytest.raises(StreamClientException, match=r"belongs to application 'shop', and this sink writes for 'other'"):
        publisher_of(files, "other").fence(a_range(3, 4, 6))


def test_earlier_epoch_is_refused_even_if_the_fences_are_gone() -> None:
    """Somebody removed a directory with an underscore: what was published still says who was there."""
    files = MemoryFiles()
    commit(files, a_range(5, 0, 4), [0, 1, 2, 3])
    files.delete(f"{ROOT}/_fence")

    with pytest.raises(FencedException, match="by an owner with epoch 5; this writer has epoch 4"):
        publisher_of(files).place(a_range(4, 0, 6))


def test_edition_whose_manifest_somebody_removed_is_named() -> None:
    files = MemoryFiles()
    commit(files, a_range(5, 0, 4), [0, 1, 2, 3])
    files.delete(f"{SHARD_PATH}/{files.names(SHARD_PATH)[0]}/_edition=epoch-5-try-0/_commit.json")

    with pytest.raises(StreamClientException, match=r"epoch-5-try-0 has no _commit.json: something else removes files"):
        publisher_of(files).place(a_range(5, 0, 6))


def test_refusing_a_shard_outside_of_a_batch_raises_the_refusal() -> None:
    """A sink that is tried out by hand says what it would have refused."""
    one = a_range(3, 0, 4)
    refusal = FencedException("epoch 3 is over")

    with pytest.raises(FencedException, match="epoch 3 is over"):
        BatchContext((one,), ()).refuse(one.shard_id, refusal)


def test_only_the_last_fence_of_a_shard_stays() -> None:
    files = MemoryFiles()
    for epoch in (1, 3, 8):
        commit(files, a_range(epoch, epoch, epoch + 1), [epoch])

    assert files.names(f"{ROOT}/_fence/shard%201") == ["epoch-8-of-shop"]


def test_later_try_of_one_owner_supersedes_its_earlier_one() -> None:
    files = MemoryFiles()
    commit(files, a_range(2, 0, 4), [0, 1, 2, 3])
    commit(files, a_range(2, 0, 2), [0, 1])

    assert read_view(files) == [0, 1]
    assert [name for name in files.texts if "epoch-2-try-0" in name] == []


@pytest.mark.parametrize(
    "edition", [Edition(0, 0), Edition(12, 3), Edition(7, 0, "0000000000%2F00000000000000000004%2F0000000000")], ids=str
)
def test_name_of_an_edition_tells_it(edition: Edition) -> None:
    assert Edition.parse(edition.name) == edition


@pytest.mark.parametrize("name", ["", "part-0.json", "epoch-1", "epoch-1-try-", "epoch--1-try-0", "epoch-1-try-0-x"])
def test_other_names_are_no_editions(name: str) -> None:
    assert Edition.parse(name) is None


@pytest.mark.parametrize("application", ["default", "a shop/of 漢", "x-of-y"])
def test_name_of_a_fence_tells_it(application: str) -> None:
    fence = Fence(9, application)

    assert Fence.parse(fence.name) == fence
    assert "/" not in fence.name


EDITIONS = st.lists(
    st.builds(Edition, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "", "a", "b"])), unique=True
)


@given(EDITIONS, st.builds(Edition, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "a"])))
def test_lower_stamp_never_changes_what_counts_among_ordinary_editions(present: list[Edition], late: Edition) -> None:
    winner = newest(present)
    if winner is not None and late.stamp < winner.stamp:
        assert newest([*present, late]) == winner


@given(EDITIONS)
def test_what_is_superseded_does_not_count_and_can_go(present: list[Edition]) -> None:
    old = superseded(present)
    left = [edition for edition in present if edition not in old]

    assert set(old).isdisjoint(counting(present))
    assert counting(left) == counting(present)


@given(EDITIONS, st.builds(Edition, st.integers(0, 4), st.integers(0, 2), st.sampled_from(["", "a"])))
def test_removing_what_is_superseded_changes_nothing_for_whatever_comes(present: list[Edition], late: Edition) -> None:
    old = superseded(present)
    left = [edition for edition in present if edition not in old]

    assert counting({*left, late}) == counting({*present, late})


@given(EDITIONS)
def test_kept_rows_count_once_and_only_beside_an_edition_as_late(present: list[Edition]) -> None:
    counted = counting(present)
    kept = [edition.kept_from for edition in counted if edition.kept_from]

    assert len(kept) == len(set(kept))
    assert all(edition.stamp <= counted[0].stamp for edition in counted)
    assert (counted == []) == (newest(present) is None)


@given(EDITIONS, st.integers(0, 3))
def test_next_edition_is_new(present: list[Edition], epoch: int) -> None:
    edition = next_edition(present, epoch)

    assert edition.epoch == epoch
    assert edition.stamp not in [one.stamp for one in present]
