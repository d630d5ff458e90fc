"""Arguments of many types: staged, and given to the function by a worker as its annotations say."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg
import pydantic
import pytest

from drain import StageError, codec, job, stage
from drain.jobs import codecs, registry
from tests.helpers import query
from tests.inprocess_worker import Workshop

KEY = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)


class Way(Enum):
    CARD = "card"


@dataclass
class Money:
    cents: int


class Customer(pydantic.BaseModel):
    name: str
    key: UUID


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


@pytest.fixture(autouse=True)
def _no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def test_a_job_receives_the_typed_arguments_it_was_staged_with(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "_codecs", {})
    codec(Point, encode=lambda point: point.x, decode=Point)
    got: list[Any] = []

    def act(
        key: UUID, way: Way, paid: Money, *, who: Customer, at: datetime, where: Point, raw: bytes
    ) -> None:
        got.extend([key, way, paid, who, at, where.x, raw])

    ada = Customer(name="Ada", key=KEY)
    registered = job(name="tests.act")(act)
    with psycopg.connect(shop.database_url) as connection:
        job_id = registered.stage(
            connection, KEY, Way.CARD, Money(3), who=ada, at=NOON, where=Point(4), raw=b"\xff"
        )
    ((args, kwargs),) = query(shop.database_url, "SELECT job_args, job_kwargs FROM staged_jobs")
    assert args == [str(KEY), "card", {"cents": 3}]
    assert kwargs["who"] == {"name": "Ada", "key": str(KEY)}
    assert shop.work(shop.move(job_id)) == "finished"
    assert got == [KEY, Way.CARD, Money(3), ada, NOON, 4, b"\xff"]


def test_async_and_isolated_jobs_receive_typed_arguments_too(shop: Workshop) -> None:
    async def waits(key: UUID) -> None:
        assert key == KEY

    def alone(key: UUID) -> None:
        assert key == KEY

    for registered in (job(name="tests.waits")(waits), job(name="tests.alone", isolated=True)(alone)):
        assert shop.work(shop.deliver(registered, KEY)) == "finished"


def test_a_value_of_the_wrong_type_kills_the_job_at_once(shop: Workshop) -> None:
    def act(key: UUID, price: Decimal = Decimal(1)) -> None:
        raise AssertionError("it was called")

    job(name="tests.act")(act)
    job_id = shop.deliver("tests.act", str(UUID(int=1)))
    # As from another language.
    query(shop.database_url, """UPDATE inflight_jobs SET job_args = '["no key"]'""")
    assert shop.work(job_id) == "dead"
    ((error, reason, attempts),) = query(
        shop.database_url, "SELECT last_error, reason, attempts FROM dead_jobs"
    )
    assert "the argument key is not a valid UUID" in str(error)
    assert (reason, attempts) == ("gave up", 1)


def test_arguments_that_do_not_fit_the_function_are_refused_when_staged(database_url: str) -> None:
    @job(name="tests.pay")
    def pay(order_id: int, *, way: str = "card") -> None:
        """Pays."""

    with psycopg.connect(database_url) as connection:
        for call in (
            lambda: pay.stage(connection),  # type: ignore[call-arg]
            lambda: pay.stage(connection, 1, 2),  # type: ignore[call-arg, arg-type]
            lambda: pay.stage(connection, 1, wya="card"),  # type: ignore[call-arg]
            lambda: stage(connection, pay, [1, 2]),
            lambda: stage(connection, "tests.pay", [1, 2]),
            lambda: pay.stage_many(connection, [(1,), (1, 2)]),
            lambda: pay.options(priority=1).stage_many(connection, [{"order": 1}]),
        ):
            with pytest.raises(StageError, match=r"do not fit tests\.pay\(order_id: int"):
                call()
        for call in (
            lambda: pay.stage(connection, "z"),  # type: ignore[arg-type]
            lambda: stage(connection, "tests.pay", ["z"]),
            lambda: pay.stage_many(connection, [(1,), ("z",)]),
        ):
            with pytest.raises(
                StageError, match=r"argument order_id of tests\.pay must be of type int, not 'z'"
            ):
                call()
        assert connection.execute("SELECT FROM staged_jobs").rowcount == 0


def test_options_keep_the_types_of_the_function(database_url: str) -> None:
    @job(name="tests.pay", queue="mail")
    def pay(order_id: int) -> None:
        """Pays."""

    with psycopg.connect(database_url) as connection:
        first = pay.options(run_in=60, priority=5, key="Ada").stage(connection, 42)
        many = pay.options(run_in=timedelta(hours=1), queue="bulk").stage_many(connection, [(1,), (2,)])
        rows = connection.execute(
            "SELECT id, queue, priority, key, round(extract(epoch FROM scheduled_at - clock_timestamp()) / 60)::int "
            "FROM staged_jobs ORDER BY id"
        ).fetchall()
    assert rows == [(first, "mail", 5, "Ada", 1), *[(job_id, "bulk", 0, None, 60) for job_id in many]]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"run_in": -1}, "must not be negative"),
        ({"run_in": "1"}, "a timedelta or seconds, not a str"),
        ({"run_in": True}, "a timedelta or seconds, not a bool"),
        ({"run_in": float("nan")}, "must end before the year 10000"),
        ({"run_in": float("inf")}, "must end before the year 10000"),
        ({"run_in": 1e300}, "must end before the year 10000"),
        ({"run_in": timedelta.max}, "must end before the year 10000"),
        ({"run_in": 1, "run_at": NOON}, "run_at or run_in, not both"),
    ],
    ids=repr,
)
def test_an_invalid_duration_is_refused(database_url: str, options: dict[str, Any], reason: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(StageError, match=reason) as caught:
        stage(connection, "shop.pay", [], **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_named(database_url: str) -> None:
    @job(name="tests.pay")
    def pay() -> None:
        """Pays."""

    with psycopg.connect(database_url) as connection:
        for call in (
            lambda: stage(connection, pay, priorty=1),  # type: ignore[call-arg]
            lambda: pay.options(priorty=1),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match="'priorty'; options: queue, priority"):
                call()
        with pytest.raises(StageError, match="one job, not for many"):
            pay.options(idempotency_key="a").stage_many(connection, [()])
