"""Hooks around attempts and at staging: order, exceptions, and what is refused."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

import drain
from drain import Dead, Defer, RateLimited, Retry, StageError, current_job, hooks, job
from drain.jobs import registry, rows
from drain.workers.errors import JobTimeoutError, LeaseLostError
from drain.workers.execution.outcome import Deferred, Failed, Finished, GaveUp, Lost, Outcome, Slowed
from tests.unit.test_attempt import NAME, claim, failed, run, run_in_the_loop

Runner = Callable[[Any], Outcome]
RUNNERS = pytest.mark.parametrize("runner", [run, run_in_the_loop], ids=["in a worker", "in the event loop"])
variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def an_empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def calls() -> list[Any]:
    return []


def noting(calls: list[Any], name: str) -> Callable[[Any], AbstractContextManager[None]]:
    @contextmanager
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        calls.append(f"{name} begins")
        try:
            yield
        finally:
            calls.append(f"{name} ends")

    return hook


def registered(runner: Runner, act: Callable[..., Any]) -> None:
    """Register a function, or an `async def` that calls it."""
    if runner is run:
        job(name=NAME)(act)
    else:

        async def wait(*args: Any) -> None:
            await asyncio.sleep(0)
            act(*args)

        job(name=NAME)(wait)


@RUNNERS
def test_the_first_registered_hook_is_the_outermost(runner: Runner, calls: list[Any]) -> None:
    drain.around(noting(calls, "first"))
    drain.around(noting(calls, "second"))
    registered(runner, calls.append)
    assert runner(claim('["the job"]')) == Finished()
    assert calls == ["first begins", "second begins", "the job", "second ends", "first ends"]


@RUNNERS
def test_a_hook_sees_the_job_and_its_context_variables_reach_it(runner: Runner, calls: list[Any]) -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        assert job is current_job()
        calls.append((job.id, job.name, job.args, job.kwargs, job.attempt, job.max_attempts, job.queue))
        token = variable.set("set by the hook")
        yield
        variable.reset(token)

    registered(runner, lambda _: calls.append(variable.get()))
    assert runner(claim('["a"]')) == Finished()
    assert calls == [(1, NAME, ["a"], {}, 1, 3, "default"), "set by the hook"]
    assert variable.get() == "unset"


def test_an_asynchronous_hook_runs_only_for_async_jobs(calls: list[Any]) -> None:
    @drain.around
    @asynccontextmanager
    async def managed(job: drain.CurrentJob) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        calls.append("asynchronous")
        yield
        calls.append("left")

    @drain.around
    async def plain(job: drain.CurrentJob) -> AsyncIterator[None]:
        calls.append("generator")
        yield

    async def act() -> None:
        calls.append("ran")

    job(name=NAME)(act)
    expected = ["asynchronous", "generator", "ran", "left"]
    assert (run_in_the_loop(claim()), calls) == (Finished(), expected)
    calls.clear()
    assert (run(claim()), calls) == (Finished(), expected)
    calls.clear()
    job(name="tests.sync")(lambda: calls.append("ran"))
    assert (run(claim(name="tests.sync")), calls) == (Finished(), ["ran"])


@RUNNERS
def test_an_exception_in_a_hook_fails_the_attempt(runner: Runner, calls: list[Any]) -> None:
    drain.around(noting(calls, "outer"))

    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        raise OSError("no tenant")
        yield

    registered(runner, lambda: calls.append("ran"))
    assert failed(runner(claim())).line == "OSError: no tenant"
    assert calls == ["outer begins", "outer ends"]


@RUNNERS
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Retry(5), Failed),
        (Defer(5), Deferred),
        (RateLimited(5), Slowed),
        (Dead("enough"), GaveUp),
        (KeyError("x"), Finished),
    ],
)
def test_a_hook_swallows_errors_but_no_decision(
    runner: Runner, error: Exception, kind: type[Outcome], calls: list[Any]
) -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        try:
            yield
        except Exception as seen:  # noqa: BLE001
            calls.append(seen)

    def act() -> None:
        raise error

    registered(runner, act)
    assert type(runner(claim())) is kind
    assert calls == [error]


@RUNNERS
@pytest.mark.parametrize(
    ("error", "kind"),
    [(Defer(5), Deferred), (Dead("enough"), GaveUp), (LeaseLostError("gone"), Lost), (OSError("x"), Failed)],
)
def test_swallowing_an_inner_hooks_exception_does_not_finish_an_unrun_job(
    runner: Runner, error: Exception, kind: type[Outcome], calls: list[Any]
) -> None:
    @drain.around
    def swallowing(job: drain.CurrentJob) -> Iterator[None]:
        with suppress(Exception):
            yield

    @drain.around
    def refusing(job: drain.CurrentJob) -> Iterator[None]:
        raise error
        yield

    registered(runner, lambda: calls.append("ran"))
    assert type(runner(claim())) is kind
    assert calls == []


@RUNNERS
def test_a_hook_cannot_swallow_another_hooks_decision(runner: Runner) -> None:
    @drain.around
    def swallowing(job: drain.CurrentJob) -> Iterator[None]:
        with suppress(Exception):
            yield

    @drain.around
    def deferring(job: drain.CurrentJob) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            raise Defer(60) from error

    def act() -> None:
        raise ConnectionError("busy")

    registered(runner, act)
    assert runner(claim()) == Deferred(60)


@pytest.mark.parametrize("error", [JobTimeoutError("late"), LeaseLostError("gone")])
def test_a_hook_cannot_swallow_an_interruption(error: Exception) -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        with suppress(Exception):
            yield

    def act() -> None:
        raise error

    registered(run, act)
    assert failed(run(claim())).error["message"] == str(error)


def test_an_interruption_is_raised_in_a_hook_too() -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        yield
        while True:
            pass

    registered(run, lambda: None)
    assert "JobTimeoutError" in failed(run(claim(timeout_seconds=1))).line


@RUNNERS
def test_a_hook_may_raise_another_exception_in_place_of_the_jobs(runner: Runner) -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            raise Defer(60) from error

    def act() -> None:
        raise ConnectionError("busy")

    registered(runner, act)
    assert runner(claim()) == Deferred(60)


@RUNNERS
def test_mismatched_arguments_are_reported_the_same_with_hooks(runner: Runner, calls: list[Any]) -> None:
    drain.around(noting(calls, "hook"))
    job(name=NAME)(lambda one: None)
    if runner is run_in_the_loop:

        async def act(one: object) -> None:
            pass

        registry._jobs.clear()
        job(name=NAME)(act)
    assert "the arguments do not fit" in failed(runner(claim("[1, 2]"))).line


def test_the_stored_traceback_begins_at_the_job(calls: list[Any]) -> None:
    drain.around(noting(calls, "hook"))

    def act() -> None:
        raise OSError("nothing")

    registered(run, act)
    _, first, *_ = failed(run(claim())).error["traceback"].splitlines()
    assert first.endswith("in act")


def test_a_child_that_the_job_forks_does_not_leave_the_hooks(calls: list[Any]) -> None:
    reading, writing = os.pipe()

    @drain.around
    def hook(job: drain.CurrentJob) -> Iterator[None]:
        yield
        os.write(writing, b"left ")

    def act() -> None:
        if pid := os.fork():
            os.waitpid(pid, 0)

    registered(run, act)
    assert run(claim()) == Finished()
    assert os.read(reading, 100) == b"left "
    os.close(reading)
    os.close(writing)


def test_a_hook_that_returns_no_context_manager_fails_with_advice() -> None:
    @drain.around
    def hook(job: drain.CurrentJob) -> int:
        return 1

    registered(run, lambda: None)
    line = failed(run(claim())).line
    assert "returned a int, not a context manager; decorate it with contextlib.contextmanager" in line


def test_a_hook_is_registered_once_and_can_be_removed(calls: list[Any]) -> None:
    hook = noting(calls, "hook")
    before = hooks.around_hooks
    assert drain.around(drain.around(hook)) is hook
    assert len(hooks.around_hooks) == len(before) + 1
    hooks.remove(hook)
    assert hooks.around_hooks == before

    def generator(job: drain.CurrentJob) -> Iterator[None]:
        yield

    drain.around(generator)
    drain.around(generator)
    assert len(hooks.around_hooks) == len(before) + 1
    hooks.remove(generator)
    assert hooks.around_hooks == before


async def coroutine_function(*_: object) -> None:
    pass


def generator_function(*_: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("register", [drain.around, drain.on_stage, drain.on_finish, drain.on_dead])
def test_an_invalid_hook_is_refused(register: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=rf"@drain.{register.__name__} is for .*, not for a str"):
        register("hook")
    with pytest.raises(TypeError, match="not for an async def"):
        register(coroutine_function)
    if register is not drain.around:
        with pytest.raises(TypeError, match="generator_function yields, and would never run"):
            register(generator_function)


# --- staging


def context_of(name: str = NAME, args: Any = (), kwargs: Any = None, **options: Any) -> object:
    return rows.insert_one(name, args, kwargs, **options).parameters.get("context")


def test_a_staging_hook_adds_to_the_context() -> None:
    @drain.on_stage
    def changes(name: str, args: Any, kwargs: Any, context: dict[str, Any]) -> None:
        context["seen"] = [name, list(args), kwargs]

    @drain.on_stage
    def returns(name: str, args: Any, kwargs: Any, context: dict[str, Any]) -> dict[str, Any]:
        return {"tenant": 7}

    given = {"request": "r1"}
    assert context_of(args=[1], kwargs={"b": 2}, context=given) == (
        f'{{"request":"r1","seen":["{NAME}",[1],{{"b":2}}],"tenant":7}}'
    )
    assert given == {"request": "r1"}


def test_stage_many_calls_the_hook_once_for_all_jobs() -> None:
    seen: list[Any] = []

    @drain.on_stage
    def hook(name: str, args: Any, kwargs: Any, context: dict[str, Any]) -> dict[str, Any]:
        seen.append((args, kwargs))
        return {"tenant": 7}

    (insert,) = rows.insert_many(NAME, [(1,), (2,)])
    assert insert.parameters["context"] == '{"tenant":7}'
    assert seen == [(None, None)]


def test_a_context_is_stored_as_given_if_a_hook_adds_nothing() -> None:
    drain.on_stage(lambda *_: None)
    assert context_of() is None
    assert context_of(context={}) == "{}"
    with pytest.raises(StageError, match="context must be a mapping, not a str"):
        context_of(context="r1")


def test_an_exception_in_a_staging_hook_refuses_the_job() -> None:
    def refuses(*_: object) -> None:
        raise KeyError("tenant")

    drain.on_stage(refuses)
    with pytest.raises(StageError, match=rf"the hook .*refuses refused {NAME}: KeyError: 'tenant'"):
        context_of()
    with pytest.raises(StageError, match="refuses refused"):
        list(rows.insert_many(NAME, [(1,)]))


def test_a_schedule_asks_no_hook_since_its_jobs_are_staged_later() -> None:
    drain.on_stage(lambda *_: {"trace": "of the deployment"})
    assert "context" not in rows.row(NAME, (), None)
