"""A command that runs on Spark leaves nothing behind when it is interrupted, whatever Spark is doing.

Here and not beside the other tests of Spark, which share one session and wait for one another.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import all_with, drain_command, environment, in_a_hurry, query, wait_until

RUN = [
    *(
        "backfill",
        "sql:SELECT n FROM generate_series(1, 100000000) AS n",
        "--job",
        "tests.act",
        "--args",
        "n",
    ),
    *("--run-id", "spring", "--master", "local[1]"),
]
INTERRUPTED = (130, "interrupted\n")


def runs(pattern: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(re.search(pattern, line) for line in lines)


@pytest.mark.parametrize(
    ("moment", "signals", "endings"),
    [
        # The JVM that finds out how the other one is to be started.
        (r"java .*launcher\.Main", [signal.SIGINT], [INTERRUPTED]),
        (r"java .*SparkSubmit", [signal.SIGTERM, signal.SIGTERM], [(143, "")]),
        # Spark plans, and there is no job yet that it could cancel.
        (r"pyspark\.daemon", [signal.SIGINT], [INTERRUPTED]),
        # The second signal may come when the first one has ended the command.
        (r"pyspark\.daemon", [signal.SIGHUP, signal.SIGINT], [(129, ""), INTERRUPTED]),
    ],
    ids=["launcher", "start", "planning", "twice"],
)
def test_no_spark_process_outlives_its_command(
    database_url: str,
    redis_url: str,
    moment: str,
    signals: list[signal.Signals],
    endings: list[tuple[int, str]],
) -> None:
    given = environment(database_url, redis_url, MARK=database_url)
    with drain_command(*RUN, env=given | in_a_hurry()) as command:
        wait_until(lambda: runs(moment)(list(all_with("MARK", database_url).values())), 120)
        for number in signals:
            command.send_signal(number)
        # As a shell says it: the second signal may find a command that is leaving and no longer handles any.
        ended = command.wait(60)
        code = ended if ended >= 0 else 128 - ended
        assert (code, command.output.removeprefix("run spring\n")) in endings
        wait_until(lambda: not all_with("MARK", database_url))
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []


def test_a_killed_jvm_is_reported_with_advice(database_url: str, redis_url: str) -> None:
    given = environment(database_url, redis_url, MARK=database_url)
    with drain_command(*RUN, env=given | in_a_hurry()) as command:

        def mine() -> dict[int, str]:
            return all_with("MARK", database_url)

        wait_until(lambda: runs(r"pyspark\.daemon")(list(mine().values())), 120)
        for pid, line in mine().items():
            if re.search(r"java .*SparkSubmit", line):
                os.kill(pid, signal.SIGKILL)
        assert command.wait(60) == 1
        assert command.output == (
            "run spring\nError: Spark's JVM was killed by SIGKILL, as happens when memory runs out: free "
            "memory, or give Spark less, such as --conf spark.driver.memory=512m\n"
        )
        wait_until(lambda: not mine())
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []


@pytest.mark.parametrize(
    ("killed", "words"),
    [
        (
            r"java .*SparkSubmit",
            "Spark's JVM was killed by SIGKILL, as happens when memory runs out: free",
        ),
        (
            r"pyspark\.daemon",
            "a Python process of Spark was killed, as happens when memory runs out",
        ),
    ],
    ids=["JVM", "Python"],
)
def test_a_process_killed_during_a_copy_is_reported_in_one_line(
    database_url: str, tmp_path: Path, killed: str, words: str
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id\n" + "\n".join(map(str, range(3_000_000))))
    given = environment(database_url, "redis://nowhere", MARK=database_url)
    words_of_run = ["backfill", str(rows), *RUN[2:]]
    with drain_command(*words_of_run, "--args", "id", env=given | in_a_hurry()) as command:
        copies = (
            "SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0 AND datname = current_database()"
        )
        wait_until(lambda: query(database_url, copies), 120)
        for pid, line in all_with("MARK", database_url).items():
            if re.search(killed, line):
                os.kill(pid, signal.SIGKILL)
        assert command.wait(60) == 1
        assert re.fullmatch(rf"run spring\nError: {re.escape(words)}.*\n", command.output)
        wait_until(lambda: not all_with("MARK", database_url))
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []
