"""What people and programs type, and what they read."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain import stage
from drain.__main__ import main
from drain.database import schema
from drain.enqueuer.redelivery import Redelivery
from drain.formatting import clock
from drain.tables import claims, finishes, outcomes
from tests.helpers import (
    PATIENCE_SECONDS,
    drain_command,
    environment,
    ids_in,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
NOBODY_LISTENS = "postgresql://user:s3cret@127.0.0.1:1/shop"

# Each command that asks the database, as it is typed.
COMMANDS = [
    "run --once",
    "status",
    "audit",
    "list dead",
    "show 1",
    "dead list",
    "dead show 1",
    "dead retry --all",
    "dead discard --all",
    "work default --burst",
]
every_command = pytest.mark.parametrize("words", COMMANDS)


def drain(words: str, env: Mapping[str, str], answer: str | None = None) -> Result:
    """Run a command in this process; whatever it raises beyond an exit code is a failure."""
    unset = dict.fromkeys(("DRAIN_DATABASE_URL", "DRAIN_REDIS_URL", "DRAIN_JOBS", "DRAIN_NAMESPACE"))
    result = CliRunner().invoke(main, words.split(), env=unset | dict(env), input=answer)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def one_line_of(result: Result) -> str:
    """What a command that could not do its work says: one line, and nothing else."""
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return {"DRAIN_DATABASE_URL": database_url, "DRAIN_REDIS_URL": redis_url, "DRAIN_JOBS": "tests.helpers"}


def drained(env: Mapping[str, str], **options: Any) -> int:
    (job_id,) = stage_jobs(env["DRAIN_DATABASE_URL"], **options)
    with new_enqueuer(env["DRAIN_DATABASE_URL"], env["DRAIN_REDIS_URL"]) as enqueuer:
        enqueuer.drain()
    return job_id


def dead(env: Mapping[str, str], **options: Any) -> int:
    return drained(env, expires_at=PAST, **options)


def claimed(env: Mapping[str, str], **options: Any) -> claims.Claim:
    job_id = drained(env, **options)
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        claim = claims.claim(connection, job_id, worker="test", limits={})
    assert claim is not None
    return claim


def finished(env: Mapping[str, str], **options: Any) -> int:
    claim = claimed(env, **options)
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        assert finishes.finish(connection, claim)
    return claim.id


def claimed_again(env: Mapping[str, str], job_id: int) -> claims.Claim:
    with new_enqueuer(env["DRAIN_DATABASE_URL"], env["DRAIN_REDIS_URL"]) as enqueuer:
        enqueuer.drain()
        Redelivery(enqueuer).run_once()
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        claim = claims.claim(connection, job_id, worker="test", limits={})
    assert claim is not None
    return claim


def buried(
    env: Mapping[str, str], message: str, *, job_id: int | None = None, attempts: int = 1, **options: Any
) -> int:
    """A job that failed so often and is dead: a new one, or one that is staged."""
    if job_id is None:
        with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
            job_id = stage(connection, "m.f", **options)
    error = {"type": "ValueError", "message": message, "traceback": f"Traceback: {message}\n  and where"}
    for _ in range(attempts):
        claim = claimed_again(env, job_id)
        with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
            if claim.attempts < attempts:
                outcomes.retry_later(connection, claim, -1, error)
            else:
                outcomes.bury_claimed(
                    connection,
                    claim,
                    reason="failed",
                    explanation="it failed",
                    error=error,
                )
    return job_id


def test_status_json_counts_the_jobs_by_state(env: dict[str, str]) -> None:
    dead(env, queue="mail")
    drained(env)
    finished(env)
    stage_jobs(env["DRAIN_DATABASE_URL"], 2)
    stage_jobs(env["DRAIN_DATABASE_URL"], queue="mail", run_at=FUTURE)

    (line,) = drain("status --json", env).stdout.splitlines()
    status = json.loads(line)

    counts = {key: status[key] for key in ("staged", "scheduled", "inflight", "finished", "dead")}
    assert counts == {"staged": 3, "scheduled": 1, "inflight": 1, "finished": 1, "dead": 1}
    assert all(type(count) is int for count in counts.values())
    assert isinstance(status["oldest_staged_age_seconds"], float)
    assert status["oldest_staged_age_seconds"] > 0
    assert status["leader"] is None
    default = {"staged": 2, "scheduled": 0, "inflight": 1, "dead": 0, "failing": False, "redis_depth": 2}
    mail = {"staged": 1, "scheduled": 1, "inflight": 0, "dead": 1, "failing": False, "redis_depth": 0}
    assert status["queues"].keys() == {"default", "mail"}
    assert status["queues"]["default"].items() >= default.items()
    assert status["queues"]["mail"].items() >= mail.items()


def test_status_of_an_empty_database_is_all_zeros(env: dict[str, str]) -> None:
    status = json.loads(drain("status --json", env).stdout)

    assert (status["staged"], status["oldest_staged_age_seconds"], status["queues"]) == (0, 0.0, {})


def test_status_names_the_leader_and_since_when(env: dict[str, str]) -> None:
    with new_enqueuer(env["DRAIN_DATABASE_URL"], env["DRAIN_REDIS_URL"]):
        leader = json.loads(drain("status --json", env).stdout)["leader"]
        text = drain("status", env).stdout

    assert datetime.fromisoformat(leader["since"]).tzinfo is not None
    assert f"{leader['name']} since {clock(datetime.fromisoformat(leader['since']))}" in text
    # The leader's lock is gone a moment after its connection.
    wait_until(lambda: json.loads(drain("status --json", env).stdout)["leader"] is None)


def test_status_works_before_the_first_leader_has_written_its_name(env: dict[str, str]) -> None:
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        connection.execute("SELECT pg_advisory_lock(1785684580, 1)")

        assert drain("status --json", env).exit_code == 0
        assert drain("status", env).exit_code == 0


def test_status_prints_the_same_as_text(env: dict[str, str]) -> None:
    dead(env, queue="mail")
    stage_jobs(env["DRAIN_DATABASE_URL"], 2)

    text = drain("status", env).stdout

    for part in ("none; start `drain run`", "staged", "2", "mail", "default"):
        assert part in text


def test_list_shows_the_latest_jobs_first(env: dict[str, str]) -> None:
    ids = stage_jobs(env["DRAIN_DATABASE_URL"], 30)
    (other,) = stage_jobs(env["DRAIN_DATABASE_URL"], queue="mail")

    def listed(words: str) -> list[int]:
        return [job["id"] for job in json.loads(drain(f"list staged --json {words}", env).stdout)]

    assert listed("") == [other, *ids[:10:-1]]
    assert listed("--limit 2") == [other, ids[-1]]
    assert listed("--queue mail") == [other]
    assert listed("--queue default --limit 1") == [ids[-1]]


def test_list_orders_jobs_by_time_not_by_id(env: dict[str, str]) -> None:
    first, second, third = (drained(env, queue=queue) for queue in ("mail", "video", "mail"))
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        held = [claims.claim(connection, job_id, worker="test", limits={}) for job_id in (second, first)]

    def listed(words: str) -> list[int]:
        return [job["id"] for job in json.loads(drain(f"list {words} --json", env).stdout)]

    assert listed("inflight") == [first, second, third]
    assert listed("inflight --queue mail") == [first, third]
    with psycopg.connect(env["DRAIN_DATABASE_URL"], autocommit=True) as connection:
        for claim in held:
            assert claim is not None
            assert finishes.finish(connection, claim)
    assert listed("finished") == [first, second]
    assert listed("finished --limit 1") == [first]
    assert listed("finished --queue video") == [second]


@pytest.mark.parametrize(("state", "make"), [("inflight", drained), ("finished", finished), ("dead", dead)])
def test_list_shows_jobs_of_every_state(env: dict[str, str], state: str, make: Any) -> None:
    job_id = make(env, queue="mail")

    assert [job["id"] for job in json.loads(drain(f"list {state} --json", env).stdout)] == [job_id]
    for part in (str(job_id), "m.f", "mail"):
        assert part in drain(f"list {state}", env).stdout


@pytest.mark.parametrize(
    ("state", "word"), [("dead", "dead"), ("finished", "completed"), ("inflight", "in-flight")]
)
def test_an_empty_list_prints_only_a_notice(env: dict[str, str], state: str, word: str) -> None:
    result = drain(f"list {state}", env)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"no {word} job matches\n")


@pytest.mark.parametrize(
    ("make", "state", "words"), [(drained, "inflight", "in flight"), (finished, "finished", "completed")]
)
def test_show_names_the_state_as_the_dashboard_does_and_json_as_the_tables(
    env: dict[str, str], make: Any, state: str, words: str
) -> None:
    job_id = make(env)
    assert re.match(rf"state +{words}\n", drain(f"show {job_id}", env).stdout)
    assert json.loads(drain(f"show {job_id} --json", env).stdout)["state"] == state


def test_an_unknown_queue_is_answered_with_the_known_ones(env: dict[str, str]) -> None:
    stage_jobs(env["DRAIN_DATABASE_URL"], queue="mail")
    stage_jobs(env["DRAIN_DATABASE_URL"], queue="video")

    result = drain("list staged --queue mial", env)

    assert result.exit_code == 0
    assert "'mial'" in result.stderr
    assert "mail, video" in result.stderr
    assert "it has no job staged, in flight or dead" in result.stderr


def test_a_table_shows_a_dead_jobs_id_and_queue_within_80_columns(
    env: dict[str, str],
) -> None:
    query(env["DRAIN_DATABASE_URL"], "ALTER SEQUENCE staged_jobs_id_seq RESTART 12345678901")
    job_id = dead(env, job="shop." + "x" * 200, queue="mail-of-customers", tag="tag " * 60)

    lines = drain("list dead", env | {"COLUMNS": "80"}).stdout.splitlines()

    assert str(job_id) in "".join(lines)
    assert "mail-of-cust" in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_show_prints_everything_about_a_job(env: dict[str, str]) -> None:
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        job_id = stage(connection, "shop.send", ["größe"], {"a": 1}, tag="shop.order")

    shown = json.loads(drain(f"show {job_id} --json", env).stdout)
    text = drain(f"show {job_id}", env).stdout

    assert (shown["state"], shown["id"], shown["job_args"]) == ("staged", job_id, ["größe"])
    assert (shown["job_kwargs"], shown["tag"], shown["expires_at"]) == ({"a": 1}, "shop.order", None)
    for part in ("staged", str(job_id), "shop.send", '["größe"]', '{"a": 1}', "shop.order"):
        assert part in text


def test_show_prints_the_last_error(env: dict[str, str]) -> None:
    claim = claimed(env)
    error = {"type": "ValueError", "message": "too small", "traceback": "Traceback: here\n  and there"}
    with psycopg.connect(env["DRAIN_DATABASE_URL"]) as connection:
        assert outcomes.retry_later(connection, claim, 5, error)

    text = drain(f"show {claim.id}", env).stdout

    assert "ValueError: too small" in text
    assert "Traceback: here\n  and there" in text


def test_show_of_an_unknown_id_is_one_line(env: dict[str, str]) -> None:
    assert "no job has the id 4711" in one_line_of(drain("show 4711", env))


@pytest.mark.parametrize(
    "words",
    [
        "show",
        "show one",
        "show 9223372036854775808",
        "list",
        "list everything",
        "dead show",
        "dead show one",
        "dead list 42",
        "dead list --limit 0",
    ],
)
def test_invalid_arguments_are_a_usage_error(env: dict[str, str], words: str) -> None:
    assert drain(words, env).exit_code == 2


@pytest.mark.parametrize(
    ("by", "named"),
    [
        ("", ["last", "other", "first"]),
        ("--limit 1", ["last"]),
        ("--queue mail", ["last", "first"]),
        ("--job shop.mail", ["first"]),
        ("--tag urgent", ["last", "other"]),
        ("--queue mail --tag urgent", ["last"]),
        ("--queue mail --limit 1", ["last"]),
        ("--tag nobody", []),
    ],
)
def test_dead_list_shows_the_selected_jobs_latest_first(
    env: dict[str, str], by: str, named: list[str]
) -> None:
    ids = {
        "first": dead(env, job="shop.mail", queue="mail"),
        "other": dead(env, tag="urgent"),
        "last": dead(env, queue="mail", tag="urgent"),
    }
    drained(env, queue="mail")

    jobs = json.loads(drain(f"dead list --json {by}", env).stdout)
    text = drain(f"dead list {by}", env)

    assert [job["id"] for job in jobs] == [ids[name] for name in named]
    assert [int(line.split()[0]) for line in text.stdout.splitlines()[1:]] == [ids[name] for name in named]
    assert (text.stderr == "no dead job matches\n") == (not named)


def test_dead_list_answers_an_unknown_queue_with_the_known_ones(env: dict[str, str]) -> None:
    dead(env, queue="mail")

    assert "known: mail" in drain("dead list --queue mial", env).stderr


def test_dead_show_explains_every_death_of_a_job(env: dict[str, str]) -> None:
    job_id = buried(env, "the first error", args=["größe"], tag="shop.order")
    assert drain(f"dead retry {job_id} --yes", env).exit_code == 0
    buried_again = buried(env, "the second error", job_id=job_id)
    assert buried_again == job_id

    shown = json.loads(drain(f"dead show {job_id} --json", env).stdout)
    text = drain(f"dead show {job_id}", env).stdout

    assert (shown["state"], shown["job_args"], shown["last_error"]["message"]) == (
        "dead",
        ["größe"],
        "the second error",
    )
    (past,) = shown["history"]
    assert (past["reason"], past["last_error"]["message"]) == ("failed", "the first error")
    assert text.index('["größe"]') < text.index("Traceback: the second error\n  and where")
    assert text.index("earlier death 1") < text.index("Traceback: the first error\n  and where")
    assert "shop.order" in text


@pytest.mark.parametrize(("state", "make"), [("in flight", drained), ("completed", finished)])
def test_dead_show_of_a_job_that_is_not_dead_reports_its_state(
    env: dict[str, str], state: str, make: Any
) -> None:
    job_id = make(env)

    line = one_line_of(drain(f"dead show {job_id}", env))
    assert f"job {job_id} is {state}, not dead: see `drain show {job_id}`" in line
    assert "no job has the id 4711" in one_line_of(drain("dead show 4711", env))


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_dead_jobs_must_be_selected_explicitly(env: dict[str, str], verb: str) -> None:
    job_id = dead(env)

    assert drain(f"dead {verb} --yes", env).exit_code == 2
    assert drain(f"dead {verb} --yes --all --queue default", env).exit_code == 2
    assert drain(f"dead {verb} --yes --all {job_id}", env).exit_code == 2
    assert ids_in(env["DRAIN_DATABASE_URL"], "dead_jobs") == [job_id]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dead retry", "select jobs with IDs, --queue, --job or --tag, or give --all"),
        ("dead retry --all 13", "select jobs or give --all, not both"),
        ("dead discard --all --tag x", "select jobs or give --all, not both"),
        pytest.param(
            *("drill kill-worker --all", "either name one drill or --all, not both"),
            marks=pytest.mark.contrib,
        ),
        pytest.param(
            *("drill nothing", "'nothing' is not a drill; name one, or --all: lease-race"),
            marks=pytest.mark.contrib,
        ),
        ("list everything", "Invalid value for 'STATE': 'everything' is not one of 'staged'"),
        ("list", "Missing argument 'STATE'"),
    ],
)
def test_wrong_usage_suggests_the_right_one(words: str, said: str) -> None:
    result = drain(words, {"DRAIN_DATABASE_URL": NOBODY_LISTENS})

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    "words",
    ["run --metrics-port 99999", "run --metrics-port http", "run --batch-size 0", "run --poll-seconds x"],
)
def test_an_invalid_setting_is_one_line_and_exit_code_1(words: str, env: dict[str, str]) -> None:
    assert f"DRAIN_{words.split()[1][2:].replace('-', '_').upper()} must " in one_line_of(drain(words, env))


@pytest.mark.parametrize("words", ["--help", "init --print"])
@pytest.mark.usefixtures("processes")
def test_an_output_that_cannot_be_written_is_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "drain", *words.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("verb", ["retry", "discard"])
@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "nothing", "end of input"])
def test_nothing_happens_to_dead_jobs_without_confirmation(
    env: dict[str, str], verb: str, answer: str
) -> None:
    job_id = dead(env)

    result = drain(f"dead {verb} {job_id}", env, answer)

    assert result.exit_code == 1
    assert f"{verb} 1 dead job?" in result.stdout
    assert ids_in(env["DRAIN_DATABASE_URL"], "dead_jobs") == [job_id]


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_jobs_that_die_during_the_confirmation_stay_dead(
    env: dict[str, str], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [dead(env), dead(env)]

    def confirm(_question: str, **_options: bool) -> None:
        query(
            env["DRAIN_DATABASE_URL"],
            "UPDATE dead_jobs SET died_at = clock_timestamp() WHERE id = %s",
            ids[0],
        )

    monkeypatch.setattr("click.confirm", confirm)

    assert f"{verb}: 1 job" in drain(f"dead {verb} --all", env).stdout
    assert ids_in(env["DRAIN_DATABASE_URL"], "dead_jobs") == ids[:1]


@pytest.mark.parametrize(
    "by", ["{}", "--queue mail", "--job shop.mail", "--tag urgent", "--queue mail --tag urgent"]
)
@pytest.mark.parametrize(("verb", "staged"), [("retry", 1), ("discard", 0)])
def test_confirmation_retries_or_discards_only_the_selected_jobs(
    env: dict[str, str], by: str, verb: str, staged: int
) -> None:
    other = dead(env)
    named = dead(env, job="shop.mail", queue="mail", tag="urgent")

    result = drain(f"dead {verb} {by.format(named)}", env, "y\n")

    assert result.exit_code == 0
    assert f"{verb}: 1 job" in result.stdout
    assert ids_in(env["DRAIN_DATABASE_URL"], "dead_jobs") == [other]
    assert ids_in(env["DRAIN_DATABASE_URL"], "staged_jobs") == [named] * staged


def test_a_retried_dead_job_is_drained_again_and_keeps_its_history(env: dict[str, str]) -> None:
    ids = [dead(env), dead(env)]

    assert drain("dead retry --all --yes", env).exit_code == 0
    with new_enqueuer(env["DRAIN_DATABASE_URL"], env["DRAIN_REDIS_URL"]) as enqueuer:
        enqueuer.drain()

    assert ids_in(env["DRAIN_DATABASE_URL"], "inflight_jobs") == ids
    (past,) = json.loads(drain(f"show {ids[0]} --json", env).stdout)["history"]
    assert past["reason"] == "expired"


def test_a_dead_job_that_is_retried_has_all_its_attempts_again(env: dict[str, str]) -> None:
    job_id = buried(env, "an error", attempts=3)
    assert json.loads(drain(f"dead show {job_id} --json", env).stdout)["attempts"] == 3

    assert drain(f"dead retry {job_id} --yes", env).exit_code == 0
    assert claimed_again(env, job_id).attempts == 1


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_the_confirmation_prompt_gives_the_number_of_dead_jobs(env: dict[str, str], verb: str) -> None:
    ids = [dead(env, queue="mail") for _ in range(3)]
    dead(env)

    refused = drain(f"dead {verb} --queue mail", env, "n\n")
    done = drain(f"dead {verb} {ids[0]} {ids[2]}", env, "y\n")

    assert f"{verb} 3 dead jobs?" in refused.stdout
    assert f"{verb} 2 dead jobs?" in done.stdout
    assert f"{verb}: 2 jobs" in done.stdout


def test_unknown_dead_jobs_are_one_line(env: dict[str, str]) -> None:
    assert "not dead: 4711" in one_line_of(drain("dead retry 4711 --yes", env))
    assert "no dead job matches" in one_line_of(drain("dead discard --all --yes", env))


def test_init_may_be_repeated(empty_database_url: str) -> None:
    for _ in range(2):
        result = drain("init", {"DRAIN_DATABASE_URL": empty_database_url})
        assert result.exit_code == 0
        assert f"version {schema.VERSION}" in result.stdout


@pytest.mark.parametrize(
    ("words", "version", "since"),
    [
        ("--print", schema.VERSION, 0),
        ("--print --version 1", 1, 0),
        ("--print --from 1", schema.VERSION, 1),
        ("--print --from 1 --version 2", 2, 1),
    ],
)
def test_init_prints_the_sql_of_a_version_or_migration_without_a_database(
    words: str, version: int, since: int
) -> None:
    result = drain(f"init {words}", {})

    assert result.exit_code == 0
    assert result.stdout == schema.script(version, since)


@pytest.mark.parametrize("words", ["--version 99", "--version 0", "--from 99", "--from 2 --version 1"])
def test_init_refuses_to_print_an_unknown_version(words: str) -> None:
    assert "version" in one_line_of(drain(f"init --print {words}", {}))


def test_the_version_option_requires_print(env: dict[str, str]) -> None:
    result = drain("init --version 1", env)

    assert result.exit_code == 2
    assert "require --print" in result.stderr


@every_command
def test_a_missing_database_url_is_one_line(words: str) -> None:
    assert "DRAIN_DATABASE_URL" in one_line_of(drain(words, {"DRAIN_REDIS_URL": "redis://127.0.0.1:1"}))


@every_command
def test_an_unreachable_server_is_one_line_without_its_password(words: str, env: dict[str, str]) -> None:
    line = one_line_of(drain(words, env | {"DRAIN_DATABASE_URL": NOBODY_LISTENS}))

    assert "127.0.0.1:1/shop" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("character", "@/?#[]:% \u2100")
def test_no_part_of_an_unencoded_password_is_shown(character: str) -> None:
    url = f"postgresql://user:hush{character}quiet@127.0.0.1:1/shop"
    line = one_line_of(drain("status", {"DRAIN_DATABASE_URL": url}))

    assert "hush" not in line
    assert "quiet" not in line


@every_command
def test_a_database_without_the_schema_is_reported_on_one_line(
    words: str, env: dict[str, str], empty_database_url: str
) -> None:
    assert "drain init" in one_line_of(drain(words, env | {"DRAIN_DATABASE_URL": empty_database_url}))


@every_command
def test_a_newer_schema_is_reported_on_one_line(words: str, env: dict[str, str]) -> None:
    query(env["DRAIN_DATABASE_URL"], "INSERT INTO drain_schema (version) VALUES (99)")

    assert "upgrade job-drain" in one_line_of(drain(words, env))


def test_init_leaves_a_newer_schema_unchanged_and_reports_it(env: dict[str, str]) -> None:
    query(env["DRAIN_DATABASE_URL"], "INSERT INTO drain_schema (version) VALUES (99)")

    assert "upgrade job-drain" in one_line_of(drain("init", env))


@pytest.mark.parametrize("words", ["run --once", "work default --burst"])
def test_a_missing_or_unusable_redis_is_one_line(words: str, env: dict[str, str]) -> None:
    def told(url: str) -> str:
        return one_line_of(drain(words, env | {"DRAIN_REDIS_URL": url}))

    assert "DRAIN_REDIS_URL" in told("")
    assert "DRAIN_REDIS_URL" in told("localhost:6379")
    assert "DRAIN_REDIS_URL" in told("redis://localhost:port/0")
    away = told("redis://:hush@127.0.0.1:1/0")
    assert "127.0.0.1:1" in away
    assert "hush" not in away


def test_status_still_counts_jobs_while_redis_is_unavailable(env: dict[str, str]) -> None:
    stage_jobs(env["DRAIN_DATABASE_URL"])

    result = drain("status --json", env | {"DRAIN_REDIS_URL": "redis://:hush@127.0.0.1:1/0"})

    assert json.loads(result.stdout)["queues"]["default"]["redis_depth"] is None
    assert "127.0.0.1:1" in result.stderr
    assert "hush" not in result.stderr


DATABASE, REDIS = "DRAIN_DATABASE_URL", "DRAIN_REDIS_URL"


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ("init", [DATABASE]),
        (
            "run",
            [
                DATABASE,
                REDIS,
                "DRAIN_NAMESPACE",
                "DRAIN_FORWARD_QUEUES",
                "DRAIN_BATCH_SIZE",
                "DRAIN_POLL_SECONDS",
                "DRAIN_METRICS_PORT",
                "DRAIN_METRICS_HOST",
            ],
        ),
        ("work", [DATABASE, REDIS, "DRAIN_JOBS", "DRAIN_NAMESPACE"]),
        ("status", [DATABASE, REDIS]),
        ("audit", [DATABASE, REDIS, "DRAIN_NAMESPACE"]),
        ("list", [DATABASE]),
        ("show", [DATABASE, REDIS, "DRAIN_NAMESPACE"]),
        ("dead list", [DATABASE]),
        ("dead show", [DATABASE]),
        ("dead retry", [DATABASE]),
        ("dead discard", [DATABASE]),
    ],
)
def test_help_names_the_variable_of_each_setting(words: str, variables: list[str]) -> None:
    result = drain(f"{words} --help", {})

    assert result.exit_code == 0
    for variable in variables:
        assert variable in result.stdout


def test_help_names_every_command() -> None:
    text = drain("--help", {}).stdout

    for command in main.commands:
        assert f"\n  {command} " in text


@pytest.mark.parametrize("words", ["status", "list dead", "list staged"])
@pytest.mark.usefixtures("processes")
def test_output_to_a_pipe_has_no_colours(
    env: dict[str, str], database_url: str, redis_url: str, words: str
) -> None:
    dead(env)
    stage_jobs(database_url)

    with drain_command(
        *words.split(), env=environment(database_url, redis_url, TERM="xterm-256color")
    ) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.output
        assert "\x1b" not in process.output
