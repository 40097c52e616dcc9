"""Records as objects of a class of one's own: what fits a field, what does not, and how that is told."""

from __future__ import annotations

import gc
import typing
import weakref
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import attrs
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from streamclient.errors import ConfigurationError, UnfitValueError
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord

PLAIN = (bool, int, float, str, bytes)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
)


def record_of(kind: RecordType = RecordType.UPDATE, **values: Any) -> StreamRecord:
    cells = tuple(RecordColumn(name, ColumnOperation.PUT, value, 1) for name, value in values.items())
    return StreamRecord(kind, (("id", "a"),), cells, SequenceInfo(0, 17, 3))


class State(Enum):
    NEW = "new"
    PAID = "paid"


class Level(IntEnum):
    LOW = 1


class Name(str):
    pass


Identity = NewType("Identity", str)
T = TypeVar("T")


@dataclass
class Order:
    id: str
    amount: float
    note: str = "none"


@attrs.define
class AttrsOrder:
    id: str
    amount: float
    note: str = "none"


class DictOrder(TypedDict):
    id: str
    amount: float
    note: typing_extensions.NotRequired[str]


class PydanticOrder(pydantic.BaseModel):
    id: str
    amount: float
    note: str = "none"


OWN_RULES = (Order, AttrsOrder, DictOrder)
KINDS = (*OWN_RULES, PydanticOrder)
each = pytest.mark.parametrize("model", KINDS, ids=lambda model: model.__name__)
each_of_ours = pytest.mark.parametrize("model", OWN_RULES, ids=lambda model: model.__name__)


def parts(made: Any) -> dict[str, Any]:
    return dict(made) if isinstance(made, dict) else {name: getattr(made, name) for name in ("id", "amount", "note")}


def misfit(model: Any, **values: Any) -> str:
    with pytest.raises(UnfitValueError) as refused:
        record_of(**values).to(model)
    return str(refused.value)


# --- kinds of classes -------------------------------------------------------------------------------------------------


@each
def test_fields_take_the_values_of_their_names(model: Any) -> None:
    made = record_of(amount=1.5, note="x", other=b"ignored").to(model)

    assert type(made) is (dict if model is DictOrder else model)
    assert parts(made) == {"id": "a", "amount": 1.5, "note": "x"}


@each
def test_a_field_without_a_value_takes_its_default(model: Any) -> None:
    made = parts(record_of(amount=1.5).to(model))

    assert made == {"id": "a", "amount": 1.5} | ({} if model is DictOrder else {"note": "none"})


@each
def test_a_float_takes_an_integer(model: Any) -> None:
    amount = parts(record_of(amount=12).to(model))["amount"]

    assert (type(amount), amount) == (float, 12.0)


@each_of_ours
def test_a_misfit_is_told_with_change_column_type_and_value(model: Any) -> None:
    name = model.__name__

    assert misfit(model, amount="twelve") == (
        f"UPDATE {{id='a'}} at 0/17/3: column 'amount' must be float for {name}, not the str 'twelve'"
    )
    assert misfit(model, note="x") == (
        f"UPDATE {{id='a'}} at 0/17/3: column 'amount' must be float for {name}, and the record does not have it: give "
        "the field a default, or ask first whether 'amount' is in the record"
    )
    assert misfit(model, amount=2**53 + 1).endswith("not the int 9007199254740993"), "no float is this number"


def test_a_misfit_of_pydantic_is_told_alike() -> None:
    assert misfit(PydanticOrder, amount="twelve") == (
        "UPDATE {id='a'} at 0/17/3 does not fit PydanticOrder: column 'amount': Input should be a valid number, unable "
        "to parse string as a number, not the str 'twelve'"
    )
    assert (
        misfit(PydanticOrder) == "UPDATE {id='a'} at 0/17/3 does not fit PydanticOrder: column 'amount': Field required"
    )


def test_pydantic_goes_by_its_own_rules() -> None:
    class Aliased(pydantic.BaseModel):
        number: int = pydantic.Field(alias="amount")
        at: datetime

    made = record_of(amount="12", at="2026-11-28T10:00:00Z").to(Aliased)

    assert (made.number, made.at) == (12, datetime(2026, 11, 28, 10, tzinfo=timezone.utc))


def test_an_error_of_a_look_alike_without_details_passes_through() -> None:
    class Strict:
        @classmethod
        def model_validate(cls, values: dict[str, Any]) -> Strict:
            raise ValueError(f"not {values['amount']}")

    with pytest.raises(ValueError, match=r"^not 1$"):
        record_of(amount=1).to(Strict)


@each
def test_a_deleted_row_has_no_values(model: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"DELETE \{id='a'\} at 0/17/3 has no values for .*: look at is_delete"
    ):
        record_of(RecordType.DELETE).to(model)


@pytest.mark.parametrize(
    "model", [int, object, "Order", None, Order("a", 1.0), dict, list[int], NamedTuple("N", [("id", str)])]
)
def test_another_kind_of_class_is_refused(model: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="a dataclass, an attrs class, a pydantic model or a TypedDict, not of"
    ):
        record_of(amount=1.5).to(model)


# --- types of fields --------------------------------------------------------------------------------------------------


def taken(hint: Any, value: Any) -> Any:
    return record_of(x=value).to(make_dataclass("Model", [("x", hint)])).x


@given(VALUES, st.sampled_from(PLAIN))
def test_a_plain_type_takes_its_own_values_unchanged(value: Any, kind: type) -> None:
    if type(value) is kind:
        assert taken(kind, value) is value
    elif kind is float and type(value) is int and abs(value) <= 2**53:
        assert (type(taken(kind, value)), taken(kind, value)) == (float, value)
    elif not (kind is float and type(value) is int):
        with pytest.raises(UnfitValueError):
            taken(kind, value)


@given(VALUES)
def test_a_field_of_any_type_takes_every_value(value: Any) -> None:
    for hint in (Any, object, int | float | bool | str | bytes, Any | None):
        assert taken(hint, value) is value


IDENTITY = UUID(int=7)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float | None, 12, 12.0),
        (float | None, 12.5, 12.5),
        (int | float, 12, 12),
        (float | int, 12, 12),
        (int | str, "12", "12"),
        (Decimal | None, "12.50", Decimal("12.50")),
        (Decimal, 12, Decimal(12)),
        (UUID, str(IDENTITY), IDENTITY),
        (State, "paid", State.PAID),
        (Level, 1, Level.LOW),
        (Name, "ann", Name("ann")),
        (Identity, "ann", "ann"),
        (Annotated[int, "cents"], 5, 5),
        (Annotated[Identity | None, "name"], "ann", "ann"),
        (Literal["a", 1], "a", "a"),
        (Literal["a", 1], 1, 1),
    ],
)
def test_a_field_of_another_type_takes_what_the_type_makes_of_the_value(hint: Any, value: Any, expected: Any) -> None:
    found = taken(hint, value)

    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (Decimal, "a", "must be decimal.Decimal for Model, not the str 'a' (InvalidOperation: "),
        (State, "gone", "not the str 'gone' (ValueError: 'gone' is not a valid State)"),
        (Level, "1", "not the str '1'"),
        (Level, True, "not the bool True"),
        (Name, 12, "not the int 12"),
        (datetime, "2026-11-28", "must be datetime.datetime for Model, not the str '2026-11-28' (TypeError: "),
        (int | None, "12", "must be int | None for Model, not the str '12'"),
        (Literal["a", 1], True, "not the bool True"),
        (Literal["a", 1], "b", "not the str 'b'"),
        (list, "ab", "must be list for Model, not the str 'ab'"),
        (list[str], "ab", "must be list[str] for Model, not the str 'ab'"),
        (set[str] | None, "ab", "not the str 'ab'"),
        (bytearray, 12, "must be bytearray for Model, not the int 12"),
        (None, "a", "not the str 'a'"),
        (T, 1, "not the int 1"),
    ],
)
def test_nothing_is_converted_silently(hint: Any, value: Any, told: str) -> None:
    with pytest.raises(UnfitValueError) as refused:
        taken(hint, value)
    assert told in str(refused.value)


# --- shapes of classes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Full:
    kind: ClassVar[str] = "full"
    id: Identity
    amounts: list[int] = field(default_factory=list)
    made: int = field(default=3, init=False)
    later: Later | None = None


class Later:
    def __init__(self, text: str) -> None:
        self.text = text


@dataclass
class Based(Order, Generic[T]):
    more: int = 0


def test_a_dataclass_is_made_as_its_constructor_wants_it() -> None:
    full = record_of(made=9, kind="x", later="soon").to(Full)

    assert (full.id, full.amounts, full.made, full.kind) == ("a", [], 3, "full")
    assert full.later is not None
    assert full.later.text == "soon"
    assert record_of(amount=2, more=1).to(Based) == Based("a", 2.0, more=1)


def test_an_argument_that_is_not_kept_as_a_field_is_given_too() -> None:
    given: list[float] = []
    model = make_dataclass(
        "Model",
        [("id", str), ("rate", InitVar[float])],
        namespace={"__post_init__": lambda made, rate: given.append(rate)},
    )

    assert record_of(rate=2).to(model).id == "a"
    assert (given, type(given[0])) == ([2.0], float)


@attrs.define
class Private:
    _id: str
    number: int = attrs.field(converter=int)
    called: str = attrs.field(default="x", alias="name")
    made: int = attrs.field(default=3, init=False)
    parts: list[int] = attrs.Factory(list)


@attrs.define(auto_attribs=False)
class Unannotated:
    id = attrs.field()
    number = attrs.field(type=int, default=0)


def test_an_attrs_class_is_made_as_its_constructor_wants_it() -> None:
    made = record_of(number="12", name="n", made=9).to(Private)

    assert (made._id, made.number, made.called, made.made, made.parts) == ("a", 12, "n", 3, [])
    assert record_of(number=5).to(Unannotated) == Unannotated("a", 5)
    assert "'number' must be int for Unannotated, not the str 'x'" in misfit(Unannotated, number="x")


class Base(TypedDict):
    id: str


class Some(Base, total=False):
    amount: float
    note: typing_extensions.Required[Annotated[str, "text"]]


def test_a_typed_dict_has_the_keys_that_it_requires() -> None:
    assert record_of(note="x").to(Some) == {"id": "a", "note": "x"}
    assert record_of(note="x", amount=1).to(Some) == {"id": "a", "note": "x", "amount": 1.0}
    assert "'note' must be str for Some, and the record does not have it" in misfit(Some, amount=1.0)
    spaced = TypedDict("spaced", {"unit price": float})  # type: ignore[misc]
    assert record_of(**{"unit price": 2.5}).to(spaced) == {"unit price": 2.5}


@dataclass
class Positive:
    amount: int

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ZeroDivisionError("amounts are positive")


def test_an_error_of_the_class_itself_passes_through() -> None:
    with pytest.raises(ZeroDivisionError, match="amounts are positive"):
        record_of(amount=0).to(Positive)


@dataclass
class Unknown:
    amount: Missing  # type: ignore[name-defined]  # noqa: F821


def test_types_that_cannot_be_found_are_told_before_a_value_is_looked_at() -> None:
    for values in ({}, {"amount": 1}):
        with pytest.raises(
            ConfigurationError, match=r"field types of Unknown cannot be found .*'Missing' is not defined"
        ):
            record_of(**values).to(Unknown)


# --- what is kept of a class ------------------------------------------------------------------------------------------


def test_a_class_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    find = typing.get_type_hints
    monkeypatch.setattr(typing, "get_type_hints", lambda model, **how: (looked.append(model), find(model, **how))[1])
    model = make_dataclass("Model", [("id", str)])

    assert [record_of().to(model).id for _ in range(3)] == ["a"] * 3
    assert looked == [model]


@pytest.mark.parametrize("decorate", [dataclass, attrs.define(slots=False)])
def test_a_class_is_kept_no_longer_than_its_owner_keeps_it(decorate: Any) -> None:
    class Local:
        id: str
        number: int = 0

    local = decorate(Local)
    assert record_of(number=5).to(local).number == 5
    watch = weakref.ref(local)
    del local, Local
    gc.collect()

    assert watch() is None
