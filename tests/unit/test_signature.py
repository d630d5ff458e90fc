"""Arguments of a job: checked against its function as they are staged, and read by its annotations."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pydantic
import pytest

from drain import StageError, codec
from drain.jobs import codecs, signature, values
from drain.jobs.annotations import ArgumentsError
from drain.jobs.signature import Signature
from tests.helpers import PATIENCE_SECONDS

if TYPE_CHECKING:
    pass


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Size(IntEnum):
    SMALL = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Money:
    cents: int


class Point:
    """Has a codec."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

    __hash__ = object.__hash__


class NamedPoint(Point):
    """A subclass of what has a codec."""


@dataclass
class Order:
    id: UUID
    placed: date
    paid: Money | None = None
    at: Point | None = None


@dataclass
class Counts:
    names: dict[int, str]
    anything: object


class Shape(Enum):
    PAIR = (1, 2)
    HALF = Decimal("0.5")


class Customer(pydantic.BaseModel):
    name: str
    since: datetime
    key: UUID


@pytest.fixture(autouse=True)
def _codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_codecs", {})
    codec(Point, encode=lambda point: [point.x, point.y], decode=lambda pair: Point(*pair))


KEY = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2030, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (UUID, KEY),
    (datetime, NOON),
    (datetime, datetime(2030, 1, 2, 12)),  # noqa: DTZ001  (as it was given)
    (date, NOON.date()),
    (time, time(12, 30)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (Decimal, Decimal("1.50")),
    (bytes, b"\0\xff"),
    (Colour, Colour.RED),
    (Colour, Colour.BLUE),
    (Size, Size.SMALL),
    (Word, Word.YES),
    (Money, Money(3)),
    (Order, Order(KEY, NOON.date(), Money(4), Point(1, 2))),
    (Customer, Customer(name="Ada", since=NOON, key=KEY)),
    (Point, Point(1, 2)),
    (list[UUID], [KEY]),
    (dict[str, Decimal], {"a": Decimal(1)}),
    (tuple[int, UUID], (1, KEY)),
    (tuple[UUID, ...], (KEY, KEY)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (UUID | None, KEY),
    (UUID | None, None),
    (Annotated[UUID, "of an order"], KEY),
    (list[Order], [Order(KEY, NOON.date())]),
    (list[Customer], [Customer(name="Ada", since=NOON, key=KEY)]),
    (dict[str, Point], {"a": Point(3, 4)}),
    (dict[int, UUID], {7: KEY}),
    (Counts, Counts({7: "seven"}, [1])),
    (Shape, Shape.PAIR),
    (Shape, Shape.HALF),
]


def takes(annotation: Any) -> Signature:
    def function(value: Any, *, other: Any = None) -> None:
        """Takes the value in either way."""

    function.__annotations__ = {"value": annotation, "other": annotation, "return": None}
    return Signature(function)


def travel(signature: Signature, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    written = values.as_arguments(args, kwargs)
    args, kwargs = json.loads(written[0]), json.loads(written[1])
    signature.decode(args, kwargs)
    return args, kwargs


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=str)
def test_a_value_is_decoded_by_its_annotation(annotation: Any, value: Any) -> None:
    signature = takes(annotation)
    assert signature.decodes
    (back,), others = travel(signature, [value], {"other": value})
    assert (back, others) == (value, {"other": value})
    assert type(back) is type(value)


def test_a_subclass_travels_by_the_codec_of_its_base() -> None:
    (back,), _ = travel(takes(Point), [NamedPoint(5, 6)], {})
    assert back == Point(5, 6)


class Pair(NamedTuple):
    a: int
    b: int


class Opaque:
    """Of which nobody knows how it is made."""


@pytest.mark.parametrize(
    "annotation",
    [
        *(int, str, float, bool, None, list, dict, Any, object, "list[int]", "Fraction", "Unknown[int]"),
        *(list[dict[str, int | None]], Literal["a", 1], Opaque, list[Opaque], UUID | Opaque, str | UUID),
        *(Pair, type, partial, 5),
    ],
    ids=repr,
)
def test_other_annotations_leave_json_values_unchanged(annotation: Any) -> None:
    signature = takes(annotation)
    assert not signature.decodes
    assert travel(signature, ["1"], {}) == (["1"], {})


def test_unannotated_arguments_arrive_as_json_values() -> None:
    def function(a, *args, b=1, **kwargs):  # type: ignore[no-untyped-def]
        pass

    assert not Signature(function).decodes
    assert travel(Signature(function), [KEY, 2], {"c": NOON})[0] == [str(KEY), 2]


@pytest.mark.parametrize(
    ("annotation", "value", "word"),
    [
        (UUID, "no key", "UUID"),
        (Colour, "green", "Colour"),
        (Customer, {"name": 1}, "Customer"),
        (Point, [1], "Point"),
        (Order, {"id": 1}, "Order"),
        (list[UUID], ["x\n"], "list"),
        (datetime, "tomorrow", "datetime"),
    ],
)
def test_a_mismatched_value_is_named_on_one_line(annotation: Any, value: Any, word: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        takes(annotation).decode([value], {})
    assert str(caught.value).startswith("the argument value is not a valid ")
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def takes_keys(first: UUID, /, *more: UUID, **others: UUID) -> None:
    """Has parameters of all kinds that are not one argument by its name."""


def test_a_variadic_annotation_applies_to_each_argument() -> None:
    arguments = ([KEY, KEY, KEY], {"others": KEY, "first": KEY})
    assert travel(Signature(takes_keys), *arguments) == arguments


def takes_two(a: int, b: int = 2, /, c: int = 3) -> None:
    """Takes up to three."""


def needs_a_keyword(a: int, *, b: int) -> None:
    """Takes exactly these."""


def takes_all(a: int, *args: int, **kwargs: int) -> None:
    """Takes more."""


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "reason"),
    [
        (takes_two, [], {}, "missing a required"),
        (takes_two, [1, 2, 3, 4], {}, "too many positional"),
        (takes_two, [1], {"b": 2}, "'b'"),
        (takes_two, [1], {"d": 2}, "'d'"),
        (takes_two, [1, 2, 3], {"c": 2}, "multiple values"),
        (needs_a_keyword, [1], {}, "'b'"),
        (needs_a_keyword, [1, 2], {}, "too many positional"),
        (takes_all, [], {"b": 1}, "'a'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(function: Any, args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(StageError, match=r"do not fit shop\.job") as caught:
        Signature(function).check("shop.job", args, kwargs)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (takes_two, [1], {}),
        (takes_two, [1, 2, 3], {}),
        (takes_two, [1], {"c": 3}),
        (needs_a_keyword, [1], {"b": 2}),
        (takes_all, [1, 2, 3], {"x": 4}),
        (takes_all, [1, 2, 3, 4, 5], {}),
        (print, ["a"], {"sep": ""}),
        (dict.fromkeys, [1, 2], {}),
    ],
)
def test_arguments_that_fit_are_accepted(function: Any, args: Any, kwargs: Any) -> None:
    Signature(function).check("shop.job", args, kwargs)


@pytest.mark.parametrize(
    ("kind", "encode"), [("Point", str), (Point, None), (5, str)], ids=["a name", "no function", "a number"]
)
def test_a_codec_needs_a_class_and_two_functions(kind: Any, encode: Any) -> None:
    with pytest.raises(TypeError, match="a class, and two functions"):
        codec(kind, encode=encode, decode=str)


def test_a_codec_that_produces_an_unencodable_value_is_refused() -> None:
    codec(Opaque, encode=lambda _: object(), decode=lambda _: Opaque())
    with pytest.raises(StageError, match="object has no codec"):
        values.as_arguments([Opaque()], {})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Money, Money(3)),
        (list[Money], [Money(3)]),
        (Money | None, Money(3)),
        (Annotated[list[Money], "paid"], [Money(3)]),
        (dict[str, tuple[Money, ...]], {"a": (Money(3), Money(4))}),
        (set[UUID], {KEY}),
        (list[set[UUID]], [{KEY}]),
        (list[UUID], [KEY]),
        (list[Colour], [Colour.RED]),
    ],
)
def test_a_codec_overrides_the_built_in_encoding(annotation: Any, value: Any) -> None:
    codec(Money, encode=lambda money: f"{money.cents} cents", decode=lambda text: Money(int(text[:-6])))
    codec(UUID, encode=lambda key: [key.int], decode=lambda numbers: UUID(int=numbers[0]))
    codec(Colour, encode=lambda colour: {"colour": colour.name}, decode=lambda said: Colour[said["colour"]])

    def function(it: Any) -> None: ...

    function.__annotations__["it"] = annotation
    args = json.loads(values.as_arguments([value], {})[0])
    Signature(function).decode(args, {})
    assert args == [value]


@pytest.mark.parametrize("native", [str, int, float, list, tuple, dict])
def test_a_codec_for_a_subclass_of_a_json_type_is_refused(native: type) -> None:
    kind = type("Mine", (native,), {})
    with pytest.raises(
        TypeError, match=f"^JSON writes a Mine as a {native.__name__}, and would not ask its codec: "
    ):
        codec(kind, encode=str, decode=kind)


def annotated(kind: Any, default: Any = ...) -> Signature:
    """The signature of a function with one parameter of this type."""

    def function(given: Any = default) -> None: ...

    if default is ...:
        function.__defaults__ = None
    function.__annotations__["given"] = kind
    return Signature(function)


@dataclass
class Single:
    left: int


FITTING: list[tuple[Any, Any]] = [
    (int, 1), (int, True), (int, Size.SMALL), (float, 1), (str, Word.YES), (str, UUID(int=1)), (bool, False),
    (list, (1, 2)), (list[int], [1]), (dict[int, str], {1: "a"}), (int | None, None), (str | int, 1), (object, 1),
    (Any, {}), (UUID, UUID(int=1)), (UUID, str(UUID(int=1))), (date, date(2030, 1, 1)), (Colour, Colour.RED),
    (Colour, "red"), (Single, Single(1)), (Single, {"left": 1}), (Literal["a"], "a"), (Decimal, Decimal(1)),
    (UUID | str, "z"), (Shape, Shape.PAIR), (Annotated[int, "positive"], 1), (Signature, "not known to JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), FITTING, ids=str)
def test_a_value_that_its_annotation_allows_is_staged(kind: Any, value: Any) -> None:
    annotated(kind).check("m.f", [value], {})
    annotated(kind).check("m.f", [], {"given": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "z"), (int, None), (int, 1.5), (str, 7), (bool, 1), (float, "1"), (dict, []), (list, {}),
        (list[int], ["z"]), (int | None, "z"), (UUID, "z"), (date, "z"), (Colour, "green"), (Single, {"left": "z"}),
        (Literal["a"], "b"), (Annotated[int, "positive"], "z"),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_violates_its_annotation_is_refused_at_staging(kind: Any, value: Any) -> None:
    for args, kwargs in (([value], {}), ([], {"given": value})):
        with pytest.raises(StageError, match=r"the argument given of m\.f must be of type ") as refused:
            annotated(kind).check("m.f", args, kwargs)
        assert "\n" not in str(refused.value)


def test_a_default_of_none_allows_none() -> None:
    annotated(int, default=None).check("m.f", [None], {})


def test_variadic_arguments_are_checked() -> None:
    def function(*numbers: int, **texts: str) -> None: ...

    signature = Signature(function)
    signature.check("m.f", [1, 2], {"a": "b"})
    for args, kwargs in (([1, "z"], {}), ([], {"a": 1})):
        with pytest.raises(StageError):
            signature.check("m.f", args, kwargs)


def test_a_signature_is_read_while_another_thread_is_reading_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process of an isolated job that is forked just then waits for a thread that it does not have."""
    reading, go_on = Event(), Event()

    def hold(function: Any) -> dict[str, Any]:
        if function is first:
            reading.set()
            assert go_on.wait(PATIENCE_SECONDS)
        return {"value": Decimal}

    def first(value: Decimal) -> None: ...

    def second(value: Decimal) -> None: ...

    monkeypatch.setattr(signature, "read_annotations", hold)
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(lambda: Signature(first).decodes)
        try:
            assert reading.wait(PATIENCE_SECONDS)
            assert threads.submit(lambda: Signature(second).decodes).result(PATIENCE_SECONDS)
        finally:
            go_on.set()
        assert held.result(PATIENCE_SECONDS)
