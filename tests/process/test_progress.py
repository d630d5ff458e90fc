"""`current_job().progress()`: seen by `drain.progress` and `drain show` while the job runs, wherever it runs."""

import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

import drain
from drain.__main__ import main
from drain.errors import ConfigError, DrainError, UnavailableError
from drain.wire import ProgressBoard
from drain.wire.progress import KEPT_SECONDS, Written
from drain.workers import NoCurrentJobError, current_job
from drain.workers.context import reporter
from tests import jobs_that_report as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    RQ_PROGRAM,
    end,
    environment,
    free_port,
    leading,
    wait_until,
)
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard, kill_worker


@pytest.fixture
def reported(shop: Workshop, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A worker in this process that carries progress to Redis, a hundred times a second."""
    monkeypatch.setattr(reporter, "EVERY_SECONDS", 0.01)
    with reporting_to(redis_url):
        yield shop


@contextmanager
def reporting_to(redis_url: str) -> Iterator[None]:
    reporter.report_to(redis_url, NAMESPACE)
    yield
    reporter.flush()
    reporter.report_to("", NAMESPACE)


def seen(redis_url: str, job_id: int) -> Any:
    """A `drain.Progress`, or None."""
    return drain.progress(job_id, redis_url, namespace=NAMESPACE)


def keys(client: Redis) -> list[bytes]:
    found: Any = client.keys("drain:progress:*")
    return list(found)


def test_progress_is_visible_while_the_job_runs_and_removed_afterwards(
    reported: Workshop, redis_url: str, client: Redis
) -> None:
    found: list[drain.Progress] = []
    began = datetime.now(UTC)

    def act() -> None:
        job = current_job()
        for number in range(100):
            job.progress(number, 400, f"page {number}")
        # An earlier report may arrive first.
        found.append(wait_until(lambda: (now := seen(redis_url, job.id)) and now.done == 99 and now))
        job.progress(0.5)
        found.append(wait_until(lambda: (now := seen(redis_url, job.id)) and now.done == 0.5 and now))
        assert 0 < client.ttl(keys(client)[0]) <= KEPT_SECONDS

    job_id = reported.delivered(act)
    assert reported.work(job_id) == "finished"
    first, second = found
    assert (first.done, first.total, first.text, first.attempt, first.fraction) == (
        99,
        400,
        "page 99",
        1,
        99 / 400,
    )
    assert began.timestamp() - 1 < first.reported_at.timestamp() <= datetime.now(UTC).timestamp()
    assert (second.done, second.total, second.text, second.fraction) == (0.5, None, None, None)
    wait_until(lambda: not keys(client))
    assert seen(redis_url, job_id) is None


def test_a_job_that_ends_at_once_is_never_written(shop: Workshop, redis_url: str, client: Redis) -> None:
    with reporting_to(redis_url):
        client.config_resetstat()
        for _ in range(20):
            assert shop.work(shop.delivered(lambda: current_job().progress(1, 2))) == "finished"
        reporter.flush()
        assert not {"cmdstat_eval", "cmdstat_evalsha"} & client.info("commandstats").keys()


def test_unchanged_progress_is_written_only_to_keep_it_from_expiring(
    reported: Workshop, redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, looks = calls_of(monkeypatch), looks_of(monkeypatch)

    def act() -> None:
        job_id = current_job().id
        current_job().progress(1)
        at = wait_until(lambda: seen(redis_url, job_id)).reported_at
        wait_until(lambda: len(looks) > 10)
        assert len(asked) == 1
        monkeypatch.setattr(reporter, "_AGAIN_SECONDS", 0.01)
        current_job().progress(2)
        wait_until(lambda: len(asked) > 5)
        client.flushall()
        later = wait_until(lambda: seen(redis_url, job_id)).reported_at
        wait_until(lambda: len(asked) > 10)
        # When it was reported, not when it was written again.
        assert at < later == seen(redis_url, job_id).reported_at

    assert reported.work(reported.delivered(act)) == "finished"


def looks_of(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each time that the thread looks for changes, from now on."""
    looks: list[None] = []
    look = reporter.Reporter._changes

    def note(each: reporter.Reporter) -> Any:
        looks.append(None)
        return look(each)

    monkeypatch.setattr(reporter.Reporter, "_changes", note)
    return looks


def calls(client: Redis) -> int:
    found: Any = client.info("commandstats")
    return sum(int(found.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


def test_a_jobs_thread_may_report_but_not_after_the_job_has_ended(
    reported: Workshop, redis_url: str, client: Redis
) -> None:
    left: list[drain.CurrentJob] = []

    def act() -> None:
        job = current_job()
        left.append(job)
        thread = threading.Thread(target=lambda: job.progress(1, 2))
        thread.start()
        thread.join()
        wait_until(lambda: seen(redis_url, job.id))

    assert reported.work(reported.delivered(act)) == "finished"
    left[0].progress(2, 2)
    wait_until(lambda: not keys(client))
    assert not (reporter._reporter and reporter._reporter._followed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("ten",), "done must be a number, not 'ten'"),
        (("10",), "done must be a number, not '10'"),
        ((True,), "done must be a number, not True"),
        ((None,), "done must be a number, not None"),
        (([1], 2), "done must be a number"),
        ((-1,), "done must lie between 0 and 2**63 - 1, not -1"),
        ((float("nan"),), "done must lie between 0 and 2**63 - 1, not nan"),
        ((float("inf"),), "not inf"),
        ((10**400,), "done must lie between"),
        ((11, 10), "11 done of a total of 10: no more than the total can be done"),
        ((1, float("nan")), "total must lie between"),
        ((1, "10"), "total must be a number, not '10'"),
        ((0, -1), "total must lie between"),
        ((1, 2, 3), "text must be a str, not 3"),
    ],
)
def test_invalid_progress_is_refused_and_the_last_report_stays(
    reported: Workshop, redis_url: str, given: tuple[Any, ...], said: str
) -> None:
    raised: list[Exception] = []

    def act() -> None:
        job = current_job()
        job.progress(7, 9)
        with pytest.raises(ValueError, match="progress: ") as error:
            job.progress(*given)
        raised.append(error.value)
        wait_until(lambda: (now := seen(redis_url, job.id)) and (now.done, now.total) == (7, 9))

    assert reported.work(reported.delivered(act)) == "finished"
    assert isinstance(raised[0], DrainError)
    assert said in str(raised[0])
    assert "\n" not in str(raised[0])


def test_unusual_numbers_and_texts_are_accepted(reported: Workshop, redis_url: str) -> None:
    from decimal import Decimal

    np = pytest.importorskip("numpy")

    def act() -> None:
        job = current_job()
        for done, total in ((np.int32(3), np.float32(4)), (Decimal(3), Decimal(4)), (3.0, 4), (3, 4.0)):
            job.progress(done, total, "\ud800\x00" + "é" * 300)  # type: ignore[arg-type]
            now = wait_until(lambda: (found := seen(redis_url, job.id)) and found.done == 3 and found)
            assert (now.done, now.total, now.text) == (3, 4, "\ud800\x00" + "é" * 198)
            job.progress(0)
            wait_until(lambda: seen(redis_url, job.id).done == 0)
        job.progress(0, 0)
        wait_until(lambda: seen(redis_url, job.id).fraction == 1)

    assert reported.work(reported.delivered(act)) == "finished"


def test_outside_of_a_job_nothing_can_be_reported() -> None:
    with pytest.raises(NoCurrentJobError, match="no job is running here"):
        current_job().progress(1)


# --- a Redis that is away


def test_a_job_continues_without_redis_and_the_log_says_so_once(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(reporter, "_PAUSE_SECONDS", 0.01)

    def act() -> None:
        asked = calls_of(monkeypatch)
        current_job().progress(1, 2)
        wait_until(lambda: len(asked) > 3)

    with (
        reporting_to(f"redis://127.0.0.1:{free_port()}/0"),
        caplog.at_level(logging.WARNING, "drain.workers.context"),
    ):
        assert shop.work(shop.delivered(act)) == "finished"
    (record,) = caplog.records
    assert record.getMessage().startswith("job progress is not reported: Redis at 127.0.0.1:")
    assert record.event == "progress_unseen"  # type: ignore[attr-defined]


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of jobs of each call that writes, from now on."""
    asked: list[int] = []
    write = ProgressBoard.write

    def note(board: ProgressBoard, all_written: Any) -> None:
        asked.append(len(all_written))
        write(board, all_written)

    monkeypatch.setattr(ProgressBoard, "write", note)
    return asked


def test_a_hung_redis_delays_neither_a_job_nor_its_end(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "EVERY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def act() -> None:
            current_job().progress(1, 2)
            # It has connected, and waits for the answer to its first command.
            connection, _ = server.accept()
            connection.recv(1)
            for number in range(10_000):
                current_job().progress(number)
            left.append(connection)

        left: list[socket.socket] = []
        began = time.monotonic()
        reporter.report_to(f"redis://127.0.0.1:{port}/0", NAMESPACE)
        assert shop.work(shop.delivered(act)) == "finished"
        reporter.flush()
        assert time.monotonic() - began < 4
        left[0].close()
    reporter.report_to("", NAMESPACE)


def test_a_reporter_thread_that_fails_to_start_does_not_harm_the_job(
    reported: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers import threads_that_fail

    threads_that_fail(monkeypatch, "progress", 1)
    assert reported.work(reported.delivered(lambda: current_job().progress(1))) == "finished"


# --- attempts


def test_an_attempt_never_overwrites_or_deletes_a_later_ones_progress(redis_url: str, client: Redis) -> None:
    with closing(ProgressBoard.at(redis_url, NAMESPACE)) as board:

        def write(token: int, *, deletes: bool = False) -> None:
            board.write([Written(7, token, "" if deletes else json.dumps({"token": token}))])

        write(2)
        write(1)
        write(1, deletes=True)
        assert board.read(7) == {"token": 2}
        write(3)
        assert board.read(7) == {"token": 3}
        write(3, deletes=True)
        assert board.read(7) is None
        # What others have left under the key.
        for leave in (lambda: client.set(keys_of_7, "no JSON"), lambda: client.lpush(keys_of_7, "a")):
            client.delete(keys_of_7)
            leave()
            assert board.read(7) is None
            write(4)
            assert board.read(7) == {"token": 4}


keys_of_7 = f"drain:progress:{NAMESPACE}:7"


def test_one_call_writes_the_progress_of_a_thousand_jobs(redis_url: str, client: Redis) -> None:
    with closing(ProgressBoard.at(redis_url, NAMESPACE)) as board:
        client.config_resetstat()
        board.write([Written(number, 1, '{"token": 1}') for number in range(1, 2501)])
        assert calls(client) - len(failed_evalshas(client)) == 3
    assert len(keys(client)) == 2500


def failed_evalshas(client: Redis) -> list[Any]:
    """Calls of scripts that the server did not know yet."""
    found: Any = client.info("commandstats")
    return [1] * int(found.get("cmdstat_evalsha", {}).get("failed_calls", 0))


def test_a_retry_starts_without_progress(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.report_in_first_attempt, "a")
    with leading(yard.env()), yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        wait_until(lambda: (now := seen(yard.redis_url, job_id)) and (now.done, now.attempt) == (9, 1))
        yard.say("fail")
        wait_until(lambda: "second" in yard.effects(), PATIENCE_SECONDS)
        wait_until(lambda: seen(yard.redis_url, job_id) is None)
        yard.say("report")
        wait_until(lambda: (now := seen(yard.redis_url, job_id)) and (now.done, now.attempt) == (1, 2))
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        wait_until(lambda: not keys(client))
        assert end(command) == 0


def test_progress_of_a_killed_process_expires_and_is_not_shown_for_the_retry(
    yard: Yard, client: Redis
) -> None:
    (job_id,) = yard.pushed(jobs.report_in_first_attempt, "a")
    with leading(yard.env()), yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        wait_until(lambda: seen(yard.redis_url, job_id))
        assert shown(yard, job_id)["progress"]["done"] == 9
        kill_worker(command)
        wait_until(lambda: "second" in yard.effects(), PATIENCE_SECONDS)
        before = seen(yard.redis_url, job_id)
        assert before is not None
        assert before.attempt == 1
        assert "progress" not in shown(yard, job_id)
        assert 0 < client.ttl(keys(client)[0]) <= KEPT_SECONDS
        yard.say("report")
        wait_until(lambda: (now := seen(yard.redis_url, job_id)) and now.attempt == 2)
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        assert end(command) == 0


# --- wherever the job runs


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (jobs.report, ()),
        (jobs.report, ("--prefetch", "1")),
        (jobs.report, ("--threads", "3")),
        (jobs.report_async, ()),
        (jobs.report_isolated, ()),
    ],
    ids=["main thread", "one by one", "threads", "event loop", "isolated"],
)
def test_progress_is_visible_in_every_kind_of_drain_work(
    yard: Yard, client: Redis, job: Any, words: tuple[str, ...]
) -> None:
    ids = (
        yard.pushed(job, "a", "b")
        if words[:1] == ("--threads",) or job is jobs.report_async
        else yard.pushed(job, "a")
    )
    with yard.working(*words, DRAIN_JOBS=jobs.MODULE) as command:
        for job_id in ids:
            now = wait_until(lambda job_id=job_id: seen(yard.redis_url, job_id))  # type: ignore[misc]
            assert (now.done, now.total, now.text, now.attempt) == (3, 10, "page 3", 1)
        yard.say("go")
        yard.wait_for("finished_jobs", ids)
        wait_until(lambda: not keys(client))
        assert end(command) == 0


@pytest.mark.parametrize("kind", [(), ("--worker-class", "rq.SimpleWorker")], ids=["forking", "simple"])
def test_progress_is_visible_from_a_stock_rq_worker(yard: Yard, client: Redis, kind: tuple[str, ...]) -> None:
    (job_id,) = yard.pushed(jobs.report, "a")
    env = {
        "DRAIN_DATABASE_URL": yard.database_url,
        "DRAIN_JOBS": jobs.MODULE,
        "PYTHONPATH": os.environ.get("PYTHONPATH", "") or str(jobs.__file__).rpartition("/tests/")[0],
    }
    with running(
        [RQ_PROGRAM, "worker", "--url", yard.redis_url, "--burst", *kind, "default"], env
    ) as process:
        now = wait_until(lambda: seen(yard.redis_url, job_id), PATIENCE_SECONDS)
        assert now
        assert (now.done, now.total, now.attempt) == (3, 10, 1)
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        # At once, by the process that ends.
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not keys(client)


@contextmanager
def running(program: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(program, env=env, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_loop_of_reports_is_written_twice_a_second_at_most(
    shop: Workshop, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = calls_of(monkeypatch)
    began = time.monotonic()

    def act() -> None:
        for number in count():
            current_job().progress(number)
            if len(asked) == 3:
                break

    with reporting_to(redis_url):
        assert shop.work(shop.delivered(act)) == "finished"
        assert time.monotonic() - began > 1.4
    # The last one deletes.
    assert asked == [1] * 4


# --- to be read


def shown(yard: Yard, job_id: int) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["show", str(job_id), "--json"], env=yard.env())
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_drain_show_prints_progress_and_works_without_redis(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.report, "a")
    with yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        wait_until(lambda: seen(yard.redis_url, job_id))
        found = shown(yard, job_id)["progress"]
        assert {name: found[name] for name in ("done", "total", "text")} == {
            "done": 3,
            "total": 10,
            "text": "page 3",
        }
        assert datetime.fromisoformat(found["reported_at"]) <= datetime.now(UTC)
        text = CliRunner().invoke(main, ["show", str(job_id)], env=yard.env()).stdout
        assert "progress          3 of 10 (30 %), page 3, " in text
        away = CliRunner().invoke(
            main, ["show", str(job_id)], env=yard.env(DRAIN_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
        )
        assert away.exit_code == 0
        assert "its progress is unknown: Redis at 127.0.0.1:" in away.stderr
        assert "\nprogress " not in away.stdout
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        assert "progress" not in shown(yard, job_id)
        assert end(command) == 0


def test_progress_takes_its_location_from_the_environment_by_default(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ProgressBoard.at(yard.redis_url, NAMESPACE)) as board:
        board.write([Written(7, 1, json.dumps({"token": 1, "attempt": 1, "done": 5, "at": 0.0}))])
    for name, text in environment(yard.database_url, yard.redis_url).items():
        if name.startswith("DRAIN_"):
            monkeypatch.setenv(name, text)
    found = drain.progress(7)
    assert found
    assert (found.done, found.total, found.text, found.reported_at) == (
        5,
        None,
        None,
        datetime.fromtimestamp(0, UTC),
    )
    assert drain.progress(8) is None
    monkeypatch.delenv("DRAIN_DATABASE_URL")
    assert drain.progress(7) == found
    monkeypatch.delenv("DRAIN_NAMESPACE")
    assert drain.progress(7, namespace=NAMESPACE) == found
    assert drain.progress(7, namespace="another") is None
    with pytest.raises(ConfigError, match="set DRAIN_DATABASE_URL or DRAIN_NAMESPACE, or pass namespace="):
        drain.progress(7)
    monkeypatch.delenv("DRAIN_REDIS_URL")
    with pytest.raises(ConfigError, match="no Redis URL"):
        drain.progress(7, namespace=NAMESPACE)
    assert drain.progress(7, yard.redis_url, namespace=NAMESPACE) == found


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda: drain.progress("7", "redis://h", namespace="n"), drain.SelectionError, "not '7'"),  # type: ignore[arg-type]
        (lambda: drain.progress(-1, "redis://h", namespace="n"), drain.SelectionError, "not -1"),
        (lambda: drain.progress(7, "http://h", namespace="n"), ConfigError, "must start with redis://"),
        (
            lambda: drain.progress(7, "redis://127.0.0.1:1", namespace="n"),
            UnavailableError,
            "does not take commands",
        ),
    ],
)
def test_an_invalid_question_is_refused_on_one_line(
    ask: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        ask()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"token": 1, "attempt": 1, "done": "5", "at": 0}',
        b'{"token": 1, "attempt": 1, "done": 5, "at": 1e300}',
        b'{"token": 1, "attempt": 1, "done": NaN, "at": 0}',
        b'{"token": 1, "attempt": 1, "done": 5, "at": 0, "total": []}',
        b'{"token": 1, "attempt": 1, "done": 5, "at": 0, "text": 7}',
    ],
)
def test_an_unexpected_value_is_not_read_as_progress(redis_url: str, client: Redis, text: bytes) -> None:
    client.set(keys_of_7, text)
    assert seen(redis_url, 7) is None
