"""One attempt: what the function does within its time becomes an outcome."""

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from drain.jobs import registry
from drain.tables.claims import Claim
from drain.workers import Dead, Defer, RateLimited, Retry, current_job, job
from drain.workers.context import django_connections
from drain.workers.context.current import Attempt
from drain.workers.errors import JobTimeoutError, LeaseLostError
from drain.workers.execution import alarm as alarms
from drain.workers.execution.alarm import interruptible
from drain.workers.execution.attempt import outcome_of, run as run_here, run_in_loop
from drain.workers.execution.calling import Call
from drain.workers.execution.outcome import (
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Slowed,
    Unreadable,
)
from drain.workers.lease import interruption
from drain.workers.lease.heartbeat import Heartbeat
from tests.helpers import wait_until

NAME = "tests.act"
FOREVER_SECONDS = 60


@pytest.fixture(autouse=True)
def an_empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture(autouse=True)
def no_alarm_is_left() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGALRM)
    yield
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert left == (0, 0)


def claim(args: str = "[]", kwargs: str = "{}", *, name: str = NAME, timeout_seconds: int = 30) -> Claim:
    return Claim(
        id=1,
        job_name=name,
        job_args=args,
        job_kwargs=kwargs,
        queue="default",
        tag=None,
        context=None,
        attempts=1,
        max_attempts=3,
        timeout_seconds=timeout_seconds,
        lease_seconds=30,
        fencing_token=1,
        lease_expires_at=datetime.now(UTC),
        expired=False,
        failed_before=False,
        salt=None,
        installation=UUID(int=0),
        worker="w",
    )


def run(claimed: Claim) -> Outcome:
    """The attempt of a claim whose lease is long enough to need no extension."""
    heartbeat = Heartbeat("postgresql://nowhere", lambda: [attempt])
    attempt = Attempt(claimed, time.monotonic(), heartbeat, "postgresql://nowhere")
    try:
        return run_here(attempt)
    finally:
        heartbeat.stop()


def run_in_the_loop(claimed: Claim) -> Outcome:
    """The same attempt, by the runner of the event loop."""
    heartbeat = Heartbeat("postgresql://nowhere", lambda: [attempt])
    attempt = Attempt(claimed, time.monotonic(), heartbeat, "postgresql://nowhere")
    try:
        return asyncio.run(run_in_loop(attempt))
    finally:
        heartbeat.stop()


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def fail(text: str) -> None:
    raise OSError(text)


def failed(outcome: object) -> Failed:
    assert isinstance(outcome, Failed)
    return outcome


def test_the_function_is_called_with_the_arguments_that_were_staged() -> None:
    calls: list[Any] = []

    @job(name=NAME)
    def act(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    assert run(claim('[1, null, {"a": [true]}]', '{"b": "ż"}')) == Finished()
    assert calls == [((1, None, {"a": [True]}), {"b": "ż"})]


def test_an_async_function_runs_to_completion() -> None:
    calls: list[str] = []

    @job(name=NAME)
    async def act(label: str) -> None:
        await asyncio.sleep(0)
        calls.append(label)

    assert run(claim('["ran"]')) == Finished()
    assert calls == ["ran"]


class UnboundProxy:
    """Such as web frameworks have: it raises at whatever is asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("working outside of a request")


@pytest.mark.parametrize("make", [lambda: "a result", threading.Lock, UnboundProxy])
def test_the_return_value_is_ignored(make: Callable[[], object]) -> None:
    job(name=NAME)(make)
    assert run(claim()) == Finished()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such order"),
        SystemExit(0),
        asyncio.CancelledError("cancelled"),
        GeneratorExit("gone"),
        ExceptionGroup("two", [ValueError("one")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_exception_fails_the_attempt(error: BaseException) -> None:
    registered = job(name=NAME)(raising(error))
    outcome = failed(run(claim()))
    assert outcome.error["type"].endswith(type(error).__name__)
    assert outcome.error["message"] == str(error)
    assert "in act" in outcome.error["traceback"]
    assert outcome.options is registered.job_options


class UntoldDefer(Defer):
    def __init__(self) -> None:
        pass


class LateDefer(Defer):
    def __init__(self) -> None:
        self.when = "tomorrow"  # type: ignore[assignment]


class SilentDefer(Defer):
    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name == "when":
            raise OSError("no when")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("error", "complaint"), [(UntoldDefer, "when"), (LateDefer, "'tomorrow'"), (SilentDefer, "no when")]
)
def test_a_deferral_without_a_valid_time_fails(error: Callable[[], Defer], complaint: str) -> None:
    registered = job(name=NAME)(raising(error()))
    outcome = failed(run(claim()))
    assert complaint in outcome.error["message"]
    assert outcome.options is registered.job_options


@pytest.mark.parametrize(
    ("after", "seconds"), [(5, 5.0), (0, 0.0), (timedelta(minutes=1), 60.0), (None, None)], ids=str
)
def test_a_retry_is_a_failed_attempt_with_its_own_wait(
    after: float | timedelta | None, seconds: float | None
) -> None:
    registered = job(name=NAME)(raising(Retry(after, "the bank is busy")))
    outcome = failed(run(claim()))
    assert (outcome.after, outcome.options) == (seconds, registered.job_options)
    assert outcome.line == "drain.workers.errors.Retry: the bank is busy"
    assert isinstance(outcome.cause, Retry)
    assert "in act" in outcome.error["traceback"]


def test_a_retry_without_a_reason_is_recorded_with_its_wait() -> None:
    job(name=NAME)(raising(Retry(after=5)))
    assert failed(run(claim())).line == "drain.workers.errors.Retry: retry after 5"


@pytest.mark.parametrize("reason", ["", "payment 7"])
@pytest.mark.parametrize("explicitly", [True, False], ids=["from the error", "while the error is handled"])
def test_a_retry_records_its_cause(reason: str, explicitly: bool) -> None:
    @job(name=NAME)
    def act() -> None:
        try:
            fail("no disk")
        except OSError as error:
            if explicitly:
                raise Retry(5, reason) from error
            raise Retry(5, reason)  # noqa: B904

    outcome = failed(run(claim()))
    assert outcome.line == ("OSError: payment 7: no disk" if reason else "OSError: no disk")
    assert (outcome.after, type(outcome.cause)) == (5.0, OSError)
    assert outcome.error["traceback"].splitlines()[-1] == "OSError: no disk"
    assert "in fail" in outcome.error["traceback"]


def test_a_retry_from_an_unraised_error_has_the_retrys_traceback() -> None:
    @job(name=NAME)
    def act() -> None:
        raise Retry(5) from OSError("no disk")

    outcome = failed(run(claim()))
    assert outcome.line == "OSError: no disk"
    assert "in act" in outcome.error["traceback"]


def test_a_retry_from_none_records_itself() -> None:
    @job(name=NAME)
    def act() -> None:
        try:
            fail("no disk")
        except OSError:
            raise Retry(5) from None

    assert failed(run(claim())).error["type"] == "drain.workers.errors.Retry"


class UntoldRetry(Retry):
    def __init__(self) -> None:
        pass


class LateRetry(Retry):
    def __init__(self) -> None:
        self.after = "tomorrow"  # type: ignore[assignment]
        self.reason = ""


@pytest.mark.parametrize(
    ("error", "complaint"),
    [(UntoldRetry, "no attribute 'after'"), (LateRetry, "Retry: 'tomorrow' is not between")],
)
def test_a_retry_without_a_valid_wait_fails(error: Callable[[], Retry], complaint: str) -> None:
    registered = job(name=NAME)(raising(error()))
    outcome = failed(run(claim()))
    assert complaint in outcome.error["message"]
    assert (outcome.options, outcome.after) == (registered.job_options, None)


@pytest.mark.parametrize(
    "after", [-1, float("nan"), 366 * 86400, "5", True, datetime(2026, 1, 1, tzinfo=UTC)], ids=str
)
def test_an_invalid_wait_is_refused_when_the_retry_is_created(after: Any) -> None:
    with pytest.raises(ValueError, match=r"Retry: .* is not between 0 seconds and a year"):
        Retry(after)


@pytest.mark.parametrize("runner", [run, run_in_the_loop])
@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (ConnectionError("no"), None),
        (FileNotFoundError("no"), "give_up_on"),
        (KeyError("no"), "give_up_on"),
        (ValueError("no"), "retry_on"),
        (JobTimeoutError("no"), "retry_on"),
        (SystemExit("no"), "retry_on"),
        (Retry(5), None),
        (LeaseLostError("no"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_registration_decides_which_errors_are_retried(
    runner: Callable[[Claim], Outcome], error: BaseException, rule: str | None
) -> None:
    async def act() -> None:
        raise error

    job(name=NAME, retry_on=(OSError,), give_up_on=(FileNotFoundError, LookupError, TypeError))(act)
    outcome = runner(claim())
    assert isinstance(outcome, Failed if rule is None else GaveUp)
    assert getattr(outcome, "rule", None) == rule


def test_mismatched_arguments_are_retried_regardless_of_the_rules() -> None:
    job(name=NAME, give_up_on=(TypeError,))(raising(ValueError()))
    assert failed(run(claim("[1]"))).error["type"] == "drain.workers.errors.ArgumentsDoNotFitError"


def test_a_retry_raised_because_the_worker_stops_does_not_count() -> None:
    call = Call(job(name=NAME)(raising(Retry(5))), [], {})
    assert isinstance(outcome_of(Retry(5), call, stopped=True), Interrupted)
    assert failed(outcome_of(Retry(5), call)).after == 5.0


class FacelessError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


def test_an_error_whose_class_attribute_raises_fails_the_attempt() -> None:
    outcomes: list[Outcome] = []
    job(name=NAME)(raising(FacelessError("why")))
    # Were it to come out here, pytest would break off at it.
    with contextlib.suppress(RuntimeError):
        outcomes.append(run(claim()))
    (outcome,) = outcomes
    assert failed(outcome).error["message"] == "why"


def test_ctrl_c_does_not_fail_the_job() -> None:
    job(name=NAME)(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(claim())


def test_an_unregistered_name_fails_and_lists_the_registered_ones() -> None:
    job(name="sums.add")(lambda: None)
    job(name="mail.send")(lambda: None)
    outcome = failed(run(claim(name="mail.sned")))
    assert outcome.error["type"] == "drain.workers.errors.NotRegisteredError"
    assert "'mail.sned'; registered here: mail.send, sums.add; " in outcome.error["message"]
    assert "DRAIN_JOBS" in outcome.error["message"]
    assert outcome.options is None


def test_the_error_says_so_if_no_job_is_registered() -> None:
    assert "registered here: nothing;" in failed(run(claim())).error["message"]


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ("[]", "{}", "missing a required argument: 'left'"),
        ("[1, 2, 3]", "{}", "too many positional arguments"),
        ("[1]", '{"middle": 2}', "'middle'"),
        ("[1]", '{"left": 1}', "multiple values for argument 'left'"),
    ],
)
def test_mismatched_arguments_are_reported_with_the_signature_before_the_call(
    args: str, kwargs: str, complaint: str
) -> None:
    calls: list[int] = []

    @job(name=NAME)
    def act(left: int, *, right: int = 0) -> None:
        calls.append(left)

    outcome = failed(run(claim(args, kwargs)))
    assert outcome.error["type"] == "drain.workers.errors.ArgumentsDoNotFitError"
    assert f"{NAME}(left: int, *, right: int = 0) -> None: " in outcome.error["message"]
    assert complaint in outcome.error["message"]
    assert outcome.options is not None
    assert calls == []


def test_mismatched_arguments_of_an_async_job_are_reported_with_the_signature() -> None:
    @job(name=NAME)
    async def act(left: int) -> None: ...

    outcome = failed(run_in_the_loop(claim("[1, 2]")))
    assert outcome.error["type"] == "drain.workers.errors.ArgumentsDoNotFitError"
    assert f"{NAME}(left: int) -> None: too many positional arguments" in outcome.error["message"]


def test_a_function_without_a_readable_signature_is_still_called() -> None:
    counts: dict[str, int] = {}
    job(name=NAME)(counts.update)
    assert run(claim('[{"a": 1}]')) == Finished()
    assert counts == {"a": 1}


def test_a_type_error_inside_the_function_keeps_its_type() -> None:
    job(name=NAME)(raising(TypeError("unsupported operand")))
    assert failed(run(claim())).error["type"] == "TypeError"


@pytest.mark.parametrize(
    "args",
    [
        f"[{'7' * (sys.get_int_max_str_digits() + 1)}]",
        f"[{'[' * 200_000}{']' * 200_000}]",
    ],
    ids=["a number with too many digits", "lists nested too deeply"],
)
def test_arguments_that_python_cannot_read_are_unreadable_at_once(args: str) -> None:
    calls: list[object] = []
    job(name=NAME)(calls.append)
    outcome = run(claim(args))
    assert isinstance(outcome, Unreadable)
    assert outcome.explanation.startswith("Python cannot read its arguments: ")
    assert len(outcome.explanation) < 1_000
    assert calls == []


def test_a_value_error_of_the_function_is_not_taken_for_unreadable_arguments() -> None:
    job(name=NAME)(raising(json.JSONDecodeError("bad", "{", 1)))
    assert isinstance(run(claim()), Failed)


def test_a_function_that_exceeds_its_timeout_is_interrupted_and_fails() -> None:
    interrupted: list[bool] = []

    @job(name=NAME)
    def act() -> None:
        try:
            time.sleep(FOREVER_SECONDS)
        finally:
            interrupted.append(True)

    outcome = failed(run(claim(timeout_seconds=1)))
    assert outcome.error["type"] == "drain.workers.errors.JobTimeoutError"
    assert outcome.error["message"] == "it ran for longer than its timeout of 1 s"
    assert "in act" in outcome.error["traceback"]
    assert interrupted == [True]


def come_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (alarms, interruption):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)


def test_a_function_that_catches_its_timeout_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    come_again_at_once(monkeypatch)
    caught: list[JobTimeoutError] = []

    @job(name=NAME)
    def act() -> None:
        while len(caught) < 3:
            try:
                time.sleep(FOREVER_SECONDS)
            except JobTimeoutError as error:
                caught.append(error)

    assert run(claim(timeout_seconds=1)) == Finished()


def test_a_timeout_swallowed_by_an_event_loop_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    come_again_at_once(monkeypatch)
    caught: list[object] = []

    def block() -> None:
        time.sleep(FOREVER_SECONDS)

    @job(name=NAME)
    async def act() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: caught.append(context["exception"]))
        loop.call_soon(block)
        await asyncio.sleep(FOREVER_SECONDS)

    outcome = failed(run(claim(timeout_seconds=1)))
    assert outcome.error["type"] == "drain.workers.errors.JobTimeoutError"
    assert isinstance(caught[0], JobTimeoutError)


def test_a_function_that_cancels_the_alarm_is_still_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    come_again_at_once(monkeypatch)

    @job(name=NAME)
    def act() -> None:
        signal.alarm(0)
        time.sleep(FOREVER_SECONDS)

    assert failed(run(claim(timeout_seconds=1))).error["type"] == "drain.workers.errors.JobTimeoutError"


@pytest.mark.parametrize("error", [None, KeyError("its own")])
def test_an_alarm_after_the_end_of_the_block_raises_nothing(error: Exception | None) -> None:
    ended: list[bool] = []

    def end() -> None:
        signal.raise_signal(signal.SIGALRM)
        ended.append(True)

    def act(*_: object) -> None:
        if error:
            raise error

    with contextlib.suppress(KeyError):
        interruptible(act, FOREVER_SECONDS, lambda: LeaseLostError("lost"), end)
    assert ended == [True]


def test_no_alarm_remains_whichever_instruction_the_function_ends_at() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    outcomes = set()
    for turn in range(20_000):
        try:
            interruptible(lambda *_: None, 1e-6 * (1 + turn % 100))
            outcomes.add("in time")
        except JobTimeoutError:
            outcomes.add("too late")
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert outcomes == {"in time", "too late"}


def test_a_watch_that_fails_to_end_leaves_no_alarm() -> None:
    with pytest.raises(OSError, match="no end"):
        interruptible(lambda *_: None, FOREVER_SECONDS, end=lambda: fail("no end"))


def test_a_function_that_ends_in_time_leaves_no_alarm() -> None:
    remaining: list[float] = []
    interruptible(look(remaining), FOREVER_SECONDS)
    assert 0 < remaining[0] <= FOREVER_SECONDS
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_function_that_raises_leaves_no_alarm() -> None:
    with pytest.raises(OSError, match="its own"):
        interruptible(lambda *_: fail("its own"), FOREVER_SECONDS)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_the_longest_timeout_of_the_schema_can_be_set() -> None:
    remaining: list[float] = []
    interruptible(look(remaining), 2**31 - 1)
    assert remaining[0] > 2**30


def look(remaining: list[float]) -> Callable[..., None]:
    """A function that notes what is left of the time."""
    return lambda *_: remaining.append(signal.getitimer(signal.ITIMER_REAL)[0])


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[list[float]]:
    """An alarm such as RQ sets, and when it rang."""
    rang: list[float] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_an_outer_alarm_resumes_with_its_remaining_time() -> None:
    with alarm(1000) as rang:
        outer = signal.getsignal(signal.SIGALRM)
        before, _ = signal.getitimer(signal.ITIMER_REAL)
        within: list[float] = []
        interruptible(look(within), FOREVER_SECONDS, end=lambda: time.sleep(0.05))
        after, _ = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is outer
        assert within[0] <= FOREVER_SECONDS
        assert FOREVER_SECONDS < after <= before - 0.05
        assert rang == []


def test_an_outer_alarm_that_expires_during_the_job_rings_afterwards() -> None:
    def rings_afterwards(seconds: float) -> bool:
        """Whether the alarm was still to come as the job began; on a slow machine it is not."""
        with alarm(seconds) as rang:
            due = time.monotonic() + seconds + 0.05
            within: list[list[float]] = []

            def act(*_: object) -> None:
                within.append(rang.copy())
                wait_until(lambda: time.monotonic() > due)
                within.append(rang.copy())

            interruptible(act, FOREVER_SECONDS)
            at_first, at_last = within
            assert at_last == at_first
            assert wait_until(lambda: rang)
            return not at_first

    seconds = 0.01
    while not rings_afterwards(seconds):
        seconds *= 2


def test_an_outer_alarm_resumes_after_a_timeout() -> None:
    with alarm(1000):
        outer = signal.getsignal(signal.SIGALRM)
        with pytest.raises(JobTimeoutError):
            interruptible(lambda *_: time.sleep(FOREVER_SECONDS), 0.01)
        remaining, _ = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is outer
        assert remaining > FOREVER_SECONDS


def test_the_time_limit_has_no_effect_in_a_thread() -> None:
    calls: list[str] = []
    job(name=NAME)(lambda: calls.append(threading.current_thread().name))
    with alarm(1000) as rang:
        outer = signal.getsignal(signal.SIGALRM)
        outcomes: list[object] = []
        thread = threading.Thread(target=lambda: outcomes.append(run(claim())), name="a thread")
        thread.start()
        thread.join(10)
        assert outcomes == [Finished()]
        assert signal.getsignal(signal.SIGALRM) is outer
        assert signal.getitimer(signal.ITIMER_REAL)[0] > FOREVER_SECONDS
        assert rang == []
    assert calls == ["a thread"]


def test_the_traceback_of_a_failed_job_begins_at_its_own_function() -> None:
    @job(name=NAME)
    def act() -> None:
        fail("no disk")

    _, first, *lines = traceback_of(run(claim()))
    assert first.endswith(", in act")
    assert lines[-1] == "OSError: no disk"
    assert "drain/workers" not in "".join(line for line in lines if "File" in line)


def test_the_traceback_of_an_async_job_begins_at_its_own_function() -> None:
    @job(name=NAME)
    async def act() -> None:
        await asyncio.sleep(0)
        fail("no disk")

    assert traceback_of(run(claim()))[1].endswith(", in act")


@pytest.mark.parametrize("runner", [run, run_in_the_loop])
def test_both_runners_in_this_process_come_to_the_same_outcomes(runner: Callable[[Claim], Outcome]) -> None:
    async def act(what: str) -> None:
        assert current_job().id == 1
        await asyncio.sleep(0)
        if what == "defer":
            raise Defer(5)
        if what == "slow down":
            raise RateLimited(retry_after=5)
        if what == "die":
            raise Dead("enough")
        if what == "hang":
            await asyncio.sleep(FOREVER_SECONDS)

    job(name=NAME)(act)
    assert runner(claim('["return"]')) == Finished()
    assert runner(claim('["defer"]')) == Deferred(5.0)
    assert runner(claim('["slow down"]')) == Slowed(5.0)
    assert isinstance(runner(claim('["die"]')), GaveUp)
    assert isinstance(runner(claim("[")), Unreadable)
    late = failed(runner(claim('["hang"]', timeout_seconds=1)))
    assert late.error["type"] == "drain.workers.errors.JobTimeoutError"
    assert failed(runner(claim(name="unknown"))).error["type"] == "drain.workers.errors.NotRegisteredError"


def test_the_traceback_of_a_timed_out_job_ends_at_its_own_line() -> None:
    @job(name=NAME)
    def act() -> None:
        try:
            threading.Event().wait(FOREVER_SECONDS)
        except JobTimeoutError as error:
            raise OSError("too slow") from error

    lines = traceback_of(run(claim(timeout_seconds=1)))
    assert lines[1].endswith(", in act")
    assert "interrupt" not in "".join(lines)
    assert lines[-1] == "OSError: too slow"


def test_causes_and_notes_of_a_failed_job_are_in_its_traceback() -> None:
    @job(name=NAME)
    def act() -> None:
        try:
            fail("no disk")
        except OSError as cause:
            error = ValueError("no order")
            error.add_note("order 42")
            raise error from cause

    text = "\n".join(traceback_of(run(claim())))
    before, after = text.split("\n\nThe above exception was the direct cause of the following exception:\n\n")
    assert before.splitlines()[1].endswith(", in act")
    assert before.endswith("OSError: no disk")
    assert after.splitlines()[1].endswith(", in act")
    assert after.endswith("ValueError: no order\norder 42")


def traceback_of(outcome: Outcome) -> list[str]:
    return failed(outcome).error["traceback"].splitlines()


@pytest.mark.parametrize("at_end", [False, True])
def test_an_interruption_while_renewing_djangos_connections_counts_only_before_the_job(
    monkeypatch: pytest.MonkeyPatch, at_end: bool
) -> None:
    """Before the job it ends the attempt; after the job it changes nothing."""
    calls: list[str] = []

    def renew(*, shared: bool) -> None:
        if at_end == ("ran" in calls):
            raise LeaseLostError("gone")

    monkeypatch.setitem(sys.modules, "django.db", types.ModuleType("django.db"))
    monkeypatch.setattr(django_connections, "_renew", renew)
    job(name=NAME)(lambda: calls.append("ran"))
    assert isinstance(run(claim()), Finished if at_end else Lost)
    assert calls == (["ran"] if at_end else [])
