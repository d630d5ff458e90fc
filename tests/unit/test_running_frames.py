"""Frames of running code, and the way to the process of an isolated job."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from drain.wire.stacks import StackQuestion
from drain.workers.execution import child_stack
from drain.workers.execution.child_stack import ChildStack
from drain.workers.lease.frames import Stack, frames_of_coroutine, shortened, stack_in
from drain.workers.process import stacks
from drain.workers.process.running import RunningJobs
from drain.workers.process.stacks import StackAnswers
from tests.helpers import PATIENCE_SECONDS


def deep(depth: int, act: Callable[[], None]) -> None:
    if depth:
        deep(depth - 1, act)
    else:
        act()


def stack_within(depth: int) -> Stack:
    found: list[Stack] = []
    deep(depth, lambda: found.append(stack_in(threading.get_ident(), None)))
    return found[0]


def test_a_stack_has_file_line_and_function_and_no_value() -> None:
    found = stack_within(3)
    assert found.place == "main thread"
    first = deep.__code__.co_firstlineno
    assert [each for each in found.frames or [] if each[2] == "deep"] == [
        *[(__file__, first + 2, "deep")] * 3,
        (__file__, first + 4, "deep"),
    ]


def test_a_deep_stack_omits_its_middle_and_counts_the_omitted_calls() -> None:
    found = stack_within(400).frames
    assert found is not None
    assert len(found) == 151
    (left_out,) = [name for path, _, name in found if not path]
    assert left_out.endswith("more calls)")
    assert shortened(found[:150]) == found[:150]


def test_an_ended_thread_has_no_calls() -> None:
    assert stack_in(1, None) == Stack("thread ''", [], [])


def test_coroutines_generators_and_async_generators_are_followed() -> None:
    async def innermost() -> None:
        await asyncio.Event().wait()

    async def numbers() -> Any:
        await innermost()
        yield 1

    async def outermost() -> None:
        async for _ in numbers():
            pass

    async def look() -> list[str]:
        task = asyncio.ensure_future(outermost())
        await asyncio.sleep(0)
        names = [name.rpartition(".")[2] for _, _, name in frames_of_coroutine(task.get_coro())]
        task.cancel()
        return names

    # What awaits the next value of a generator tells no frame of it.
    assert asyncio.run(look())[0] == "outermost"

    async def directly() -> list[str]:
        task = asyncio.ensure_future(innermost())
        await asyncio.sleep(0)
        names = [name.rpartition(".")[2] for _, _, name in frames_of_coroutine(task.get_coro())]
        task.cancel()
        return names

    assert asyncio.run(directly()) == ["innermost", "wait"]
    assert frames_of_coroutine(None) == frames_of_coroutine(3) == []


class OfChild:
    """Where a job of the child is, as its thread is told."""

    def __init__(self, place: str) -> None:
        self.place = place

    def frames(self) -> Stack:
        return Stack(self.place, [("a.py", 3, "f")], [])


def answering(stack: ChildStack, interruption: Any) -> threading.Thread:
    thread = threading.Thread(target=child_stack._answer, args=(stack._theirs, interruption), daemon=True)
    thread.start()
    return thread


def test_a_child_answers_every_question_until_the_channel_is_closed() -> None:
    stack = ChildStack()
    thread = answering(stack, OfChild("MainThread"))
    for _ in range(300):
        assert stack.ask() == Stack("process 0, MainThread", [("a.py", 3, "f")], [])
    stack._ours.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert stack.ask().frames is None
    stack.close()


def test_a_late_answer_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = ChildStack()
    monkeypatch.setattr(child_stack, "_PATIENCE_SECONDS", 0.01)
    assert stack.ask().frames is None
    monkeypatch.setattr(child_stack, "_PATIENCE_SECONDS", PATIENCE_SECONDS)
    places = iter(["late", "new"])

    class Both(OfChild):
        def frames(self) -> Stack:
            return Stack(next(places), [], [])

    thread = answering(stack, Both(""))
    assert stack.ask().place == "process 0, new"
    stack.close()
    thread.join(PATIENCE_SECONDS)


def test_closing_ends_a_question_that_waits() -> None:
    stack = ChildStack()
    found: list[Stack] = []
    asking = threading.Thread(target=lambda: found.append(stack.ask()))
    asking.start()
    stack._theirs.recv(1)
    stack.close()
    asking.join(PATIENCE_SECONDS)
    assert [each.frames for each in found] == [None]


@pytest.mark.parametrize("answer", [b"no json\n", b"[1]\n", b"[1, 2, 3, 4]\n", b'[1, "x", [[1]], []]\n'])
def test_an_invalid_answer_yields_no_frames(answer: bytes) -> None:
    stack = ChildStack()
    stack._theirs.sendall(answer)
    assert stack.ask().frames is None
    stack.close()


def test_a_flood_of_questions_gets_a_bounded_number_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[Any] = []
    now = 100.0
    monkeypatch.setattr(stacks, "write_answer", lambda *given: answered.append(given))
    monkeypatch.setattr(stacks, "monotonic", lambda: now)
    inbox: Any = SimpleNamespace(running=RunningJobs(), attempts=list)
    answers = StackAnswers(inbox, "test")
    client: Any = None
    asked = {"job_id": 1, "token": 1, "word": "a" * 32}
    for _ in range(1000):
        answers.answer(client, asked)
    assert len(answered) == 20
    now = 101.5
    answers.answer(client, asked)
    assert len(answered) == 21
    assert answered[-1][3]["state"] == "unknown"


@pytest.mark.parametrize(
    ("stack", "has_ended", "state"),
    [
        (Stack("main thread", [("a.py", 1, "f")], []), False, "running"),
        (Stack("process 7", None, []), False, "silent"),
        (Stack("main thread", [], []), True, "ended"),
        (None, False, "waiting"),
        (ValueError("the frame is gone"), False, "silent"),
    ],
)
def test_the_answer_reports_the_state_of_the_job(stack: Any, has_ended: bool, state: str) -> None:
    def look() -> Any:
        if isinstance(stack, Exception):
            raise stack
        return stack

    attempt: Any = SimpleNamespace(has_ended=has_ended, interruption=SimpleNamespace(frames=look))
    attempt.claim = SimpleNamespace(id=1, fencing_token=2)
    inbox: Any = SimpleNamespace(running=RunningJobs(), attempts=lambda: [attempt])
    answers = StackAnswers(inbox, "test")
    assert answers._find(StackQuestion(1, 2, "a" * 32))["state"] == state
    # A claim of another attempt is not this one.
    assert answers._find(StackQuestion(1, 3, "a" * 32))["state"] == "unknown"
