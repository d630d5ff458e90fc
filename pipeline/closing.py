"""Process on Spark that closes days for `drain archive --follow`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any, cast

from drain.errors import DrainError
from drain.pipeline import datasources, days
from drain.pipeline.days import Answer, Comparison, Order
from drain.pipeline.files import Written
from drain.pipeline.interruption import interruptible
from drain.pipeline.session import BRIEF, require, session


class Closer:
    """Executes the orders of a day in a process that writes only hidden files, so it may outlive this one."""

    def __init__(self, spark: Mapping[str, Any]) -> None:
        # At the start, not at midnight.
        require()
        self._spark = dict(spark)
        self._process: subprocess.Popen[str] | None = None
        self._ended = False

    def __call__(self, orders: Sequence[Order]) -> list[Answer]:
        """Execute orders, or raise DrainError, also after `end`."""
        with subprocess.Popen(
            [sys.executable, "-m", "drain.pipeline.closing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._spark.get("verbose") else subprocess.DEVNULL,
            text=True,
            # Ctrl-C is for the follower.
            start_new_session=True,
        ) as process:
            self._process = process
            if self._ended:
                self.end()
            # Arguments would show the password. Closing stdin would end the process.
            with suppress(BrokenPipeError):
                given = json.dumps({"spark": self._spark, "orders": [*map(asdict, orders)]})
                os.write(cast("IO[str]", process.stdin).fileno(), f"{given}\n".encode())
            answer = json.loads(cast("IO[str]", process.stdout).readline() or '{"error": "Spark was ended"}')
            self._process = None
        if "error" in answer:
            raise DrainError(answer["error"])
        return [_answer(**each) for each in answer["answers"]]

    def end(self) -> None:
        """End the process, and start no other."""
        self._ended = True
        if self._process is not None:
            self._process.terminate()


def _answer(*, written: Sequence[dict[str, Any]], comparison: dict[str, Any], **given: Any) -> Answer:
    return Answer([Written(**file) for file in written], comparison=Comparison(**comparison), **given)


def main() -> None:
    """Execute standard input's orders, and answer on standard output."""
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with interruptible(session(**given["spark"], java_options=BRIEF)) as spark:
            datasources.register(spark)
            answers = days.archive(spark, [Order(**order) for order in given["orders"]])
        answer: dict[str, Any] = {"answers": [*map(asdict, answers)]}
    except DrainError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201  (the answer of a program to a program)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
