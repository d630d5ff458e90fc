"""Signals while a command works on Spark: what the first one ends, and how."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from drain.pipeline import interruption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session() -> Iterator[SparkSession]:
    yield cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=lambda: None)))


def end(number: int) -> None:
    os.kill(os.getpid(), number)
    pytest.fail("the work went on")


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_the_first_signal_ends_the_drivers_own_work_at_once(
    number: signal.Signals, error: type[BaseException]
) -> None:
    with interruption.interruptible(session()), interruption.at_once(), pytest.raises(error):
        end(number)


def test_the_drivers_own_work_does_not_begin_after_a_signal() -> None:
    with interruption.interruptible(session()):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            interruption.at_once().__enter__()


def test_the_first_signal_only_cancels_spark_work() -> None:
    with interruption.interruptible(session()):
        with interruption.at_once():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
