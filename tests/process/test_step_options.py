"""Options of a step: retries within the attempt, and a timeout of each call."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import drain
from drain import failpoints
from drain.failpoints import FailurePoint
from drain.tables import cancellations
from drain.tables.selections import Selection
from drain.workers import (
    JobTimeoutError,
    LeaseLostError,
    TransactionError,
    UnfitResultError,
    current_job,
)
from drain.workers.context import step_options
from drain.workers.context.current import current_attempt
from drain.workers.errors import INTERRUPTIONS, WorkerStoppedError
from tests import jobs_in_batches
from tests.blocks import OfDjango, forget_django, use_django_at
from tests.helpers import connected, end, leading, rq_worker, wait_until
from tests.inprocess_worker import FOREVER_SECONDS, HEARTBEAT_SECONDS, Workshop, leave
from tests.process.test_steps import recorded
from tests.worker_processes import Yard

LONG = timedelta(minutes=1)
Fail = Callable[[int], None]
# Each kind of step, which is named "charge", called with its options and a function of the number of the call.
Way = Callable[[dict[str, Any], Fail], Any]


class Calls:
    def __init__(self, fail: Fail) -> None:
        self.count = 0
        self._fail = fail

    def begin(self) -> str:
        self.count += 1
        return f"call {self.count}"

    def end(self, label: str) -> str:
        self._fail(self.count)
        return label


def outside(options: dict[str, Any], fail: Fail) -> Any:
    calls = Calls(fail)
    return drain.step.options(**options)("charge", lambda: calls.end(calls.begin()))


def by_sqlalchemy(options: dict[str, Any], fail: Fail) -> Any:
    return drain.step_transaction.options(**options)("charge", _write, Calls(fail))


def by_psycopg(options: dict[str, Any], fail: Fail) -> Any:
    return drain.psycopg_step_transaction.options(**options)("charge", _write, Calls(fail))


def outside_async(options: dict[str, Any], fail: Fail) -> Any:
    calls = Calls(fail)

    async def act() -> str:
        return calls.end(calls.begin())

    return asyncio.run(drain.async_step.options(**options)("charge", act))


def by_async_sqlalchemy(options: dict[str, Any], fail: Fail) -> Any:
    async def write(session: Any, calls: Calls) -> str:
        return await session.run_sync(_write, calls)  # type: ignore[no-any-return]

    return asyncio.run(drain.async_step_transaction.options(**options)("charge", write, Calls(fail)))


def by_async_psycopg(options: dict[str, Any], fail: Fail) -> Any:
    async def write(connection: Any, calls: Calls) -> str:
        label = calls.begin()
        await connection.execute("INSERT INTO effects (label) VALUES (%s)", (label,))
        return calls.end(label)

    return asyncio.run(drain.async_psycopg_step_transaction.options(**options)("charge", write, Calls(fail)))


def by_django(options: dict[str, Any], fail: Fail) -> Any:
    from drain.contrib.django import step_transaction

    use_django_at(current_attempt().database_url)
    return step_transaction.options(**options)("charge", _write_by_django, Calls(fail))


def _write_by_django(calls: Calls) -> str:
    from django.db import connection

    return _write(OfDjango(connection), calls)


def _write(handle: Any, calls: Calls) -> str:
    label = calls.begin()
    leave(handle, label)
    return calls.end(label)


OUTSIDE = [outside, outside_async]
TRANSACTIONS = [by_sqlalchemy, by_psycopg, by_async_sqlalchemy, by_async_psycopg]
if find_spec("drain.contrib"):
    TRANSACTIONS.append(by_django)
ALL = pytest.mark.parametrize("way", [*OUTSIDE, *TRANSACTIONS])
ATOMIC = pytest.mark.parametrize("way", TRANSACTIONS)


def until_call(number: int, error: Callable[[], BaseException] = OSError) -> Fail:
    def fail(call: int) -> None:
        calls_made.append(call)
        if call < number:
            raise error()

    return fail


calls_made: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    calls_made.clear()
    yield
    django = sys.modules.get("django.conf")
    if django and django.settings.configured:
        forget_django()


@ALL
def test_a_step_that_fails_is_called_again_and_recorded_once(
    shop: Workshop, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """Writes of failed calls are rolled back; a later attempt leaves out the recorded step."""
    results: list[Any] = []

    def act() -> None:
        results.append(way({"retries": 3, "backoff": 0}, until_call(3)))
        if current_job().attempt == 1:
            raise OSError

    with caplog.at_level(logging.WARNING):
        job_id = shop.delivered(act)
        assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert results == ["call 3"] * 2
    assert recorded(shop) == [(job_id, "charge", "call 3", 1)]
    assert shop.effects() == ([] if way in OUTSIDE else ["call 3"])
    first, second = [each for each in caplog.records if getattr(each, "event", None) == "step_retried"]
    assert first.getMessage() == (
        f"job {job_id} (tests.act): step 'charge' failed in attempt 1; retry 1 of 3 in 0s: OSError"
    )
    fields: Any = vars(second)
    assert (fields["job_id"], fields["step"], fields["attempt"], fields["error"]) == (
        job_id,
        "charge",
        1,
        "OSError",
    )


@ALL
def test_after_the_last_retry_the_job_gets_the_error(shop: Workshop, way: Way) -> None:
    job_id = shop.delivered(lambda: way({"retries": 2, "backoff": 0}, until_call(9)))
    assert shop.work(job_id) == "retrying"
    assert calls_made == [1, 2, 3]
    assert shop.row(job_id)["last_error"]["type"] == "OSError"
    assert shop.effects() == []
    assert recorded(shop) == []


def test_each_wait_is_twice_the_last_up_to_a_minute(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [1000.0], [0.0]
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    monkeypatch.setattr(step_options, "monotonic", lambda: now[0])
    monkeypatch.setattr(step_options, "_NAP_SECONDS", 1000.0)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(step_options, "sleep", sleep)
    options = {"retries": 4, "backoff": timedelta(seconds=12)}
    assert shop.work(shop.delivered(lambda: outside(options, until_call(5)))) == "finished"
    assert waits == [0.0, 12.0, 24.0, 48.0, 60.0]


FINAL: list[Callable[[], BaseException]] = [
    *INTERRUPTIONS,
    lambda: drain.Retry(after=5),
    lambda: drain.Defer(60),
    lambda: drain.RateLimited(60),
    drain.StepError,
    TransactionError,
    SystemExit,
    asyncio.CancelledError,
]


@pytest.mark.parametrize("way", [outside, outside_async, by_sqlalchemy])
@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error()).__name__)
def test_errors_that_decide_the_outcome_are_not_retried(
    shop: Workshop, way: Way, error: Callable[[], BaseException]
) -> None:
    shop.work(shop.delivered(lambda: way({"retries": 3, "backoff": LONG}, until_call(2, error))))
    assert calls_made == [1]


@pytest.mark.parametrize("option", ["give_up_on", "retry_on"])
def test_errors_that_the_job_does_not_retry_are_not_retried(shop: Workshop, option: str) -> None:
    def act() -> None:
        outside({"retries": 3, "backoff": LONG}, until_call(2))

    options: dict[str, Any] = {option: (OSError if option == "give_up_on" else ValueError,)}
    assert shop.work(shop.delivered(act, **options)) == "dead"
    assert calls_made == [1]


@ALL
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_the_wait_ends_when_the_lease_is_lost(shop: Workshop, way: Way, in_main_thread: bool) -> None:
    """Outside the main thread nothing interrupts a job of this worker: the wait itself looks."""
    seen: list[BaseException] = []

    def fail(call: int) -> None:
        calls_made.append(call)
        shop.take_over(job_id)
        raise OSError

    def act() -> None:
        try:
            way({"retries": 3, "backoff": LONG}, fail)
        except BaseException as error:
            seen.append(error)
            raise

    job_id = shop.delivered(act, lease_seconds=30, heartbeat_seconds=HEARTBEAT_SECONDS)
    assert _work(shop, job_id, in_main_thread) == "stale"
    assert calls_made == [1]
    assert issubclass(type(seen[0]), LeaseLostError)


def _work(shop: Workshop, job_id: int, in_main_thread: bool) -> str:
    if in_main_thread:
        return shop.work(job_id)
    with ThreadPoolExecutor(1) as other:
        return other.submit(shop.work, job_id).result()


@pytest.mark.parametrize("way", OUTSIDE)
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_the_wait_ends_when_the_job_is_cancelled(shop: Workshop, way: Way, in_main_thread: bool) -> None:
    def fail(call: int) -> None:
        calls_made.append(call)
        cancellations.cancel_inflight(connected(shop.database_url), Selection(ids=(job_id,)))
        raise OSError

    def act() -> None:
        way({"retries": 3, "backoff": LONG}, fail)

    job_id = shop.delivered(act, lease_seconds=30, heartbeat_seconds=HEARTBEAT_SECONDS)
    assert _work(shop, job_id, in_main_thread) == "cancelled"
    assert calls_made == [1]


@pytest.mark.parametrize("way", OUTSIDE)
def test_the_wait_ends_when_the_worker_stops(shop: Workshop, way: Way) -> None:
    def fail(call: int) -> None:
        calls_made.append(call)
        current_attempt().interruption.order(WorkerStoppedError("it stops"), stopped=True)
        raise OSError

    job_id = shop.delivered(lambda: way({"retries": 3, "backoff": LONG}, fail))
    assert _work(shop, job_id, in_main_thread=False) == "interrupted"
    assert calls_made == [1]


@pytest.mark.parametrize("way", OUTSIDE)
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_the_wait_counts_toward_the_timeout_of_the_job(
    shop: Workshop, way: Way, in_main_thread: bool
) -> None:
    job_id = shop.delivered(lambda: way({"retries": 3, "backoff": LONG}, until_call(2)), timeout_seconds=1)
    assert _work(shop, job_id, in_main_thread) == "retrying"
    assert calls_made == [1]
    assert shop.row(job_id)["last_error"]["type"].endswith(JobTimeoutError.__name__)


@contextmanager
def _hook(hook: Callable[[FailurePoint], None]) -> Iterator[None]:
    failpoints.set_hook(hook)
    try:
        yield
    finally:
        failpoints.set_hook(None)


@ALL
def test_a_step_that_may_be_recorded_is_not_retried(shop: Workshop, way: Way) -> None:
    """The next attempt finds out."""

    def strike(reached: FailurePoint) -> None:
        if reached is FailurePoint.STEP_RECORDED and current_job().attempt == 1:
            raise OSError

    def act() -> None:
        way({"retries": 3, "backoff": LONG}, until_call(1))

    job_id = shop.delivered(act)
    with _hook(strike):
        assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert calls_made == [1]
    assert recorded(shop) == [(job_id, "charge", "call 1", 1)]


@ATOMIC
def test_a_retry_has_a_session_of_its_own_if_the_server_ended_the_first(shop: Workshop, way: Way) -> None:
    def fail(call: int) -> None:
        if call == 1:
            assert wait_until(lambda: shop.terminate("drain job"))
            raise OSError

    job_id = shop.delivered(lambda: way({"retries": 1, "backoff": 0}, fail))
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["call 2"]
    assert recorded(shop) == [(job_id, "charge", "call 2", 1)]


@ATOMIC
def test_a_step_of_an_outdated_claim_is_not_retried(shop: Workshop, way: Way) -> None:
    def fail(call: int) -> None:
        calls_made.append(call)
        shop.take_over(job_id)

    job_id = shop.delivered(lambda: way({"retries": 3, "backoff": LONG}, fail), heartbeat_seconds=10)
    assert shop.work(job_id) == "stale"
    assert calls_made == [1]
    assert shop.effects() == []
    assert recorded(shop) == []


@ATOMIC
def test_a_deferred_constraint_that_fails_at_the_commit_is_not_retried(shop: Workshop, way: Way) -> None:
    with psycopg.connect(shop.database_url) as connection:
        connection.execute("ALTER TABLE effects ADD UNIQUE (label) DEFERRABLE INITIALLY DEFERRED")
        connection.execute("INSERT INTO effects (label) VALUES ('call 1')")
    job_id = shop.delivered(lambda: way({"retries": 3, "backoff": LONG}, until_call(1)))
    assert shop.work(job_id) == "retrying"
    assert calls_made == [1]


def test_a_result_that_cannot_be_kept_is_not_retried(shop: Workshop) -> None:
    def unfit() -> object:
        calls_made.append(1)
        return object()

    def act() -> None:
        with pytest.raises(UnfitResultError):
            drain.step.options(retries=3, backoff=LONG)("charge", unfit)

    assert shop.work(shop.delivered(act)) == "finished"
    assert calls_made == [1]


def test_a_child_that_a_step_forks_is_not_retried(shop: Workshop) -> None:
    children: list[int] = []

    def fork() -> int:
        child = os.fork()
        if child == 0:
            raise OSError
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def act() -> None:
        children.append(drain.step.options(retries=3, backoff=LONG)("charge", fork))

    assert shop.work(shop.delivered(act)) == "finished"
    assert children != [0]


@pytest.mark.parametrize("kind", ["step", "sqlalchemy", "psycopg"])
def test_a_call_of_an_async_step_that_exceeds_its_timeout_is_retried(shop: Workshop, kind: str) -> None:
    async def act() -> None:
        async def hang(*_: object) -> int:
            calls_made.append(1)
            if len(calls_made) == 1:
                await asyncio.sleep(FOREVER_SECONDS)
            return len(calls_made)

        step: Any = {
            "step": drain.async_step,
            "sqlalchemy": drain.async_step_transaction,
            "psycopg": drain.async_psycopg_step_transaction,
        }[kind]
        assert await step.options(retries=1, backoff=0, timeout=timedelta(seconds=0.5))("charge", hang) == 2

    assert shop.work(shop.delivered(act)) == "finished"
    assert calls_made == [1, 1]


def test_the_error_of_a_timeout_names_the_step(shop: Workshop) -> None:
    async def act() -> None:
        await drain.async_step.options(timeout=0.01)("charge", asyncio.sleep, FOREVER_SECONDS)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    error = shop.row(job_id)["last_error"]
    assert error["message"] == "step 'charge' ran for longer than its timeout of 0.01 s"


def test_a_timeout_of_the_function_itself_keeps_its_message(shop: Workshop) -> None:
    async def act() -> None:
        async def fail() -> None:
            raise TimeoutError("the service does not answer")

        await drain.async_step.options(timeout=LONG)("charge", fail)

    job_id = shop.delivered(act)
    shop.work(job_id)
    assert shop.row(job_id)["last_error"]["message"] == "the service does not answer"


def test_a_retried_step_does_not_block_the_event_loop(shop: Workshop) -> None:
    async def act() -> None:
        is_up = asyncio.Event()

        async def charge() -> int:
            if not is_up.is_set():
                raise OSError
            return 1

        async def come_up() -> int:
            is_up.set()
            return 2

        results = await asyncio.gather(
            drain.async_step.options(retries=100, backoff=0.001)("charge", charge),
            drain.async_step("come up", come_up),
        )
        assert [*results] == [1, 2]

    assert shop.work(shop.delivered(act)) == "finished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": -1}, "retries of a step must be a whole number up to 100, not -1"),
        ({"retries": 101}, "up to 100, not 101"),
        ({"retries": True}, "not True"),
        ({"retries": "3"}, "not '3'"),
        ({"retries": 1.5}, "not 1.5"),
        ({"backoff": -1}, "backoff of a step must be a timedelta or seconds, up to 60, not -1"),
        ({"backoff": timedelta(seconds=61)}, "up to 60"),
        ({"backoff": float("nan")}, "not nan"),
        ({"backoff": None}, "not None"),
        ({"backoff": False}, "not False"),
        ({"timeout": "1"}, "timeout of a step must be a timedelta or seconds, up to 86400, not '1'"),
        ({"timeout": 86_401}, "up to 86400"),
        ({"timeout": 0}, "timeout of a step must be above 0"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        drain.async_step.options(**options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("step", [drain.step, drain.step_transaction, drain.psycopg_step_transaction])
def test_only_async_steps_have_a_timeout(step: Any) -> None:
    with pytest.raises(ValueError, match="only an async step can have a timeout"):
        step.options(timeout=1)


if TYPE_CHECKING:

    def charge(order_id: int, *, key: str) -> None: ...

    # The type check reports an unused `ignore`.
    drain.step.options(retries=1)("charge", charge, 42, key="a")
    drain.step.options(retries=1)("charge", charge, "42", key="a")  # type: ignore[arg-type]
    drain.step("charge", charge, "42", key="a")  # type: ignore[arg-type]


def test_steps_are_still_checked(shop: Workshop) -> None:
    def act() -> None:
        retried = drain.step.options(retries=1, backoff=0)
        with pytest.raises(drain.StepError):
            retried("", print)
        with suppress(OSError):
            retried("charge", until_call(9), 1)
        assert retried("charge", until_call(1), 1) is None
        with pytest.raises(drain.StepError):
            retried("charge", print)

    assert shop.work(shop.delivered(act)) == "finished"
    assert calls_made == [1, 1, 1]


KINDS: list[Any] = [
    jobs_in_batches.retry_step,
    jobs_in_batches.retry_step_in_loop,
    jobs_in_batches.retry_step_isolated,
]


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["alone", "in threads"])
def test_workers_retry_the_steps_of_each_kind_of_job(yard: Yard, options: tuple[str, ...]) -> None:
    ids = [job_id for number, kind in enumerate(KINDS) for job_id in yard.pushed(kind, f"{number}")]
    with leading(yard.env()), yard.working(*options) as command:
        yard.wait_for("finished_jobs", ids)
        assert len(command.events("step_retried")) == len(KINDS)
        assert end(command) == 0
    assert sorted(yard.effects()) == ["0", "1", "2"]


def test_an_unmodified_rq_worker_retries_steps(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs_in_batches.retry_step, "a")
    rq_worker(yard.redis_url, "default", env=yard.env())
    assert yard.place(job_id) == "finished_jobs"
    assert yard.effects() == ["a"]
