"""The table of hostile databases, stores and catalogs: what befalls which of them, when, for how long, beside whom.

Read it as a page. ``TROUBLES`` says what happens, ``PLACES`` where rows go, ``ConsumerKind`` who writes them, ``Step``
when it begins, ``Lasting`` when it ends. The rules at the end leave out combinations that mean nothing.

What must follow is one law for all cases. Nothing is lost, doubled or changed: at the end the place has exactly what
was written, each change once, and its proof agrees. A trouble that stays is named with a word of its cause, in the
health or the trouble of the consumer, or by the error that ends it. Once the cause is gone the consumer goes on by
itself, and names nothing more. Rows that others have changed are named by the proof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product

from attrs import field, frozen


class PlaceKind(Enum):
    """Where rows go. A mirror into Iceberg is the history of a mirror: rows without a key."""

    POSTGRES = "PostgreSQL"
    DIRECTORY = "Delta in a directory"
    STORE = "Delta on a store"
    ICEBERG = "Iceberg"


POSTGRES, DIRECTORY, STORE, ICEBERG = PlaceKind
DELTA = (DIRECTORY, STORE)


class ConsumerKind(Enum):
    """Who writes."""

    DESTINATION = "destination"
    MIRROR = "mirror"


DESTINATION, MIRROR = ConsumerKind


class Step(Enum):
    """When the trouble begins."""

    START = "before the first start"
    LOOK = "at the first look"
    MAKE = "as the table is made"
    COPY = "in the copy"
    PREPARED = "between prepare and commit"
    ROWS = "as rows are brought"
    COMMIT = "at commit"
    STORED = "between commit and checkpoint"
    IDLE = "while nothing changes"
    RESTART = "before a later start"
    END = "after all is stored"


_WITHOUT_TABLE = (Step.START, Step.LOOK, Step.MAKE)
"""There is no table yet."""


class Lasting(Enum):
    """When the trouble ends."""

    MOMENT = "for a moment"
    UNTIL_NAMED = "until it is named"
    OVER_A_RESTART = "until a restarted one names it"
    UNTIL_EVEN = "until all is stored"


@frozen
class Trouble:
    """Something that befalls a place; the modules of the places know how."""

    name: str
    does: str
    at: Mapping[PlaceKind, str] = field(hash=False)
    """Where it can be, and a pattern that names its cause there; ``HARMLESS`` where nothing is to be named."""
    needs_table: bool = True
    """Whether it befalls tables that are there."""
    beside: tuple[ConsumerKind, ...] = (DESTINATION, MIRROR)
    steps: tuple[Step, ...] = tuple(step for step in Step if step is not Step.END)

    def __str__(self) -> str:
        return self.name


HARMLESS = ""
_NETWORK = (POSTGRES, STORE, ICEBERG)
_CONNECTION = r"(?i)connect|closed|broke|sending request|terminat"
_SILENCE = r"(?i)nothing came|not answered|no answer|timed? ?out|sending request"


def _at(words: str, *places: PlaceKind) -> dict[PlaceKind, str]:
    return dict.fromkeys(places, words)


NETWORK = (
    Trouble("silence", "connections stay, and nothing comes on them", _at(_SILENCE, *_NETWORK), needs_table=False),
    Trouble("cuts", "connections are closed, new ones at once", _at(_CONNECTION, *_NETWORK), needs_table=False),
    Trouble("late answers", "answers come when all is over", _at(_SILENCE, *_NETWORK), needs_table=False),
    Trouble("slow answers", "each answer is a little late", _at(HARMLESS, *_NETWORK), needs_table=False),
    Trouble("a stopped server", "the server ends", _at(_CONNECTION, POSTGRES, ICEBERG), needs_table=False),
)
"""Between the consumer and the place."""

IN_PLACE = Trouble(
    "another's in its place",
    "a file, or a table that is none of ours",
    {DIRECTORY: "is a file", POSTGRES: "but not", ICEBERG: "needs the property"},
    needs_table=False,
    steps=(Step.START,),
)
AWAY = r"(?i)gone|bring it back|restore them|no table|not there|does not exist|not find"
SIGHT = (
    Trouble("the table away", "renamed, moved, or its objects out of sight", _at(AWAY, *PlaceKind)),
    Trouble("the log away", "the commits only", _at(AWAY + "|_commits|No such file|not found", *PlaceKind)),
    Trouble("the schema away", "all around the table", _at(AWAY + "|No such file", POSTGRES, DIRECTORY, ICEBERG)),
    Trouble(
        "rows away",
        "files of rows, which a merge reads",
        _at(r"(?i)no such file|not found|does not exist", *DELTA),
        beside=(MIRROR,),
        steps=(Step.IDLE, Step.RESTART, Step.STORED),
    ),
    IN_PLACE,
)
"""Tables, schemas and directories, away and back."""

_DENIED = r"(?i)denied|not permitted|403|forbidden|lacks the right|not allowed"
RIGHTS = (
    Trouble(
        "read-only",
        "the role may only read",
        {POSTGRES: "read.only", ICEBERG: "(?i)read.only", STORE: _DENIED},
        needs_table=False,
    ),
    Trouble(
        "no entry",
        "the role may not come in",
        {POSTGRES: "not permitted to log in", ICEBERG: "not permitted to log in", STORE: _DENIED},
        needs_table=False,
    ),
    Trouble("no connections left", "the role has too many", _at("too many connections", POSTGRES), needs_table=False),
    Trouble("a closed database", "nobody may come in", _at("not currently accepting", POSTGRES), needs_table=False),
    Trouble("no right to the schema", "to use it, and to make tables", _at(_DENIED, POSTGRES), needs_table=False),
    Trouble("no right to rows", "to change them", {POSTGRES: _DENIED, ICEBERG: _DENIED}),
    Trouble("no right to the log", "to add to it", _at(_DENIED, POSTGRES)),
    Trouble("no temporary tables", "the role may make none", _at("(?i)temporary", POSTGRES), needs_table=False),
)
"""Of the role that writes."""

SETTINGS = (
    Trouble("odd settings", "defaults of the role", _at(HARMLESS, POSTGRES, ICEBERG), needs_table=False),
    Trouble("an unsafe property", "of the table", {**_at("enableExpiredLogCleanup", *DELTA), ICEBERG: "num-retries"}),
    Trouble("append-only", "a property of the table", _at("(?i)append.only", *DELTA), beside=(MIRROR,)),
    Trouble("no standby", "a commit waits for one", _at("(?i)standby|no answer|nothing came|timeout", POSTGRES)),
)
"""Of servers, roles and tables."""

_LOCKS = "(?i)lock|timeout|no answer|others use the table"
OTHERS = (
    Trouble("a locked table", "another locks it", _at(_LOCKS, POSTGRES, ICEBERG)),
    Trouble("locked shards", "another locks the table of shards", _at(_LOCKS, POSTGRES)),
    Trouble("a long reader", "no column can be added", _at("column.*others", POSTGRES)),
    Trouble("a constraint", "no new row fulfils it", {POSTGRES: "constraint", **_at("validation check", *DELTA)}),
    Trouble("a trigger", "keeps rows out", _at("trigger", POSTGRES)),
    Trouble("maintenance", "another compacts, vacuums or expires", _at(HARMLESS, *PlaceKind)),
    Trouble("another's column", "added", _at(HARMLESS, *PlaceKind)),
    Trouble("another's required column", "added", {POSTGRES: "not-null|null value", ICEBERG: "requires a value"}),
    Trouble("a column of another type", "the key's", _at("column 'id' is (smallint|int64)", POSTGRES)),
    Trouble("a column of texts", "numbers stand beside it", _at(HARMLESS, POSTGRES), beside=(DESTINATION,)),
    Trouble("a renamed column", "the key's", {POSTGRES: "'id'", ICEBERG: "'id'"}),
)
"""By other users of the tables."""

ROWS = (
    Trouble("doubled rows", "added once more", _at("(?i)more than once|twice|rows", *PlaceKind), steps=(Step.END,)),
    Trouble("lost rows", "deleted", _at("(?i)missing|rows|digest", *PlaceKind), steps=(Step.END,)),
)
"""Changed by others, which only a proof can tell."""

TROUBLES = (*NETWORK, *SIGHT, *RIGHTS, *SETTINGS, *OTHERS, *ROWS)


@frozen
class Case:
    """One line of the table."""

    place: PlaceKind
    consumer: ConsumerKind
    trouble: Trouble
    step: Step
    lasting: Lasting

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is to be named."""
        return self.trouble.at[self.place] == HARMLESS

    def names(self, text: str) -> bool:
        """Whether a text names the cause."""
        return bool(text) and re.search(self.trouble.at[self.place], text) is not None

    def __str__(self) -> str:
        return f"{self.place.value}, {self.consumer.value}: {self.trouble} {self.step.value}, {self.lasting.value}"


# --- what is left out -------------------------------------------------------------------------------------------------

RULES: Sequence[tuple[str, Callable[[Case], bool]]] = (
    ("a trouble is where it can be", lambda case: case.place in case.trouble.at),
    ("it befalls those whom it can befall", lambda case: case.consumer in case.trouble.beside),
    ("it begins when it can begin", lambda case: case.step in case.trouble.steps),
    (
        "tables are befallen once they are there",
        lambda case: not (case.trouble.needs_table and case.step in _WITHOUT_TABLE),
    ),
    ("only a mirror copies", lambda case: case.step is not Step.COPY or case.consumer is MIRROR),
    ("files of a directory come in one step", lambda case: case.step is not Step.ROWS or case.place is not DIRECTORY),
    (
        "trouble ends once it is named; what is never named, once it was survived",
        lambda case: (
            (case.lasting is Lasting.UNTIL_EVEN) <= case.is_harmless
            and (case.lasting in (Lasting.UNTIL_NAMED, Lasting.OVER_A_RESTART)) <= (not case.is_harmless)
        ),
    ),
    (
        "rows stay as others have made them",
        lambda case: case.step is not Step.END or case.lasting is Lasting.UNTIL_NAMED,
    ),
    (
        "nobody knows of a copy that is out of sight: a mirror that is started then begins another, which is as good",
        lambda case: not (case.step is Step.COPY and case.trouble in SIGHT and case.lasting is Lasting.OVER_A_RESTART),
    ),
    (
        "a history of changes is no table that can be merged into",
        lambda case: not (case.place is ICEBERG and case.trouble.beside == (MIRROR,)),
    ),
)
"""A case is in the table if all of these hold."""


def may_end(case: Case) -> bool:
    """Whether the consumer may end with an error that names the cause: a mirror that copies ends, and is run again.

    So does a program that names a file as the directory of its table.
    """
    if case.place is DIRECTORY and case.trouble is IN_PLACE:
        return True
    begins = case.step in (*_WITHOUT_TABLE, Step.COPY, Step.RESTART) or case.lasting is Lasting.OVER_A_RESTART
    return case.consumer is MIRROR and begins


def all_cases() -> Iterator[Case]:
    """The whole table."""
    for values in product(PlaceKind, ConsumerKind, TROUBLES, Step, Lasting):
        case = Case(*values)
        if all(holds(case) for _, holds in RULES):
            yield case


def singles(case: Case) -> frozenset[object]:
    """Each trouble; each step and each way to end of each consumer; each consumer of each place."""
    return frozenset(
        {case.trouble, (case.consumer, case.step), (case.consumer, case.lasting), (case.place, case.consumer)}
    )
