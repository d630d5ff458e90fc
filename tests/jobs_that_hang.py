"""Jobs that hang in worker processes of the tests, each in a place of its own, until a test says "go"."""

import asyncio
import re
import time

from drain.workers import job
from tests import jobs_in_batches as others

MODULE = "tests.jobs_that_hang"


@job
def hang(label: str) -> None:
    others._leave(label)
    _deep_inside(label)


def _deep_inside(secret: str) -> None:
    del secret
    others._wait_for("go")


@job(isolated=True)
def hang_isolated(label: str) -> None:
    hang.function(label)


@job
async def hang_async(label: str) -> None:
    others._leave(label)
    await _deep_in_the_loop()


async def _deep_in_the_loop() -> None:
    while not await asyncio.to_thread(others._count, "go"):
        await asyncio.sleep(0.01)


@job
async def block_the_loop(label: str) -> None:
    """Let no other coroutine go on, as code that calls a synchronous library."""
    others._leave(label)
    others._wait_for("go")


@job(max_attempts=1)
def hold_the_interpreter(label: str) -> None:
    """Match for ever, in C, without ever releasing the interpreter."""
    others._leave(label)
    re.match("(a+)+b", "a" * 200)


@job
def return_at_go(label: str) -> None:
    others._leave(label)
    while not others._count("go"):
        time.sleep(0.01)
