"""Dead jobs are retried with other arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result

from drain import job
from drain.__main__ import main
from drain.database import postgres
from drain.errors import StageError
from drain.jobs.editing import Edit, revive_edited
from drain.tables.dead import Selection
from tests.database.test_flow_commands import Operated
from tests.dead_rows import bury, error
from tests.flows import flows
from tests.helpers import ids_in, query

PRECISE = "[12345678901234567890.123, 1.10]"


def run(database_url: str, words: str) -> Result:
    env = {"DRAIN_DATABASE_URL": database_url}
    return CliRunner().invoke(main, shlex.split(words), env=env)


def staged(database_url: str, job_id: int) -> Mapping[str, Any]:
    ((args, kwargs, history),) = query(
        database_url,
        "SELECT job_args::text, job_kwargs::text, history FROM staged_jobs WHERE id = %s",
        job_id,
    )
    return {"args": args, "kwargs": kwargs, "history": history}


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        (f"--args '{PRECISE}'", PRECISE, '{"by": "ada"}'),
        ("--kwargs '{}'", '["coffee"]', "{}"),
        ("""--args '[]' --kwargs '{"n": 1}'""", "[]", '{"n": 1}'),
    ],
)
def test_a_retried_job_gets_new_arguments_and_its_history_keeps_the_earlier_ones(
    database_url: str, options: str, args: str, kwargs: str
) -> None:
    job_id, other = bury(database_url, "shop.sell", error("/a.py:1:f"), count=2, job_args=["coffee"])
    query(
        database_url,
        """UPDATE dead_jobs SET job_kwargs = '{"by": "ada"}', unique_key = 'u' WHERE id = %s""",
        job_id,
    )
    result = run(database_url, f"dead retry {job_id} {options} --yes")
    assert result.stdout == "retry: 1 job\n"
    now = staged(database_url, job_id)
    assert (now["args"], now["kwargs"]) == (args, kwargs)
    (death,) = now["history"]
    assert (death["job_args"], death["job_kwargs"]) == (["coffee"], {"by": "ada"})
    assert death["reason"] == "failed"
    ((role, unique_key),) = query(database_url, "SELECT session_user, unique_key FROM staged_jobs")
    assert (death["edited_by"], unique_key) == (role, "u")
    shown = run(database_url, f"show {job_id}").stdout
    assert '["coffee"]' in shown.partition("earlier death 1")[2]
    assert "edited_at" in shown
    assert ids_in(database_url, "dead_jobs") == [other]


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ("ID --args 'tea'", "cannot be read as JSON", 1),
        ("ID --args '{\"item\": 1}'", "arguments must be a list", 1),
        ("ID --args '\"tea\"'", "arguments must be a list", 1),
        ("ID --kwargs '[1]'", "keyword arguments must be a mapping", 1),
        ("ID --args '[NaN]'", "cannot be written as JSON", 1),
        (r"""ID --args '["\u0000"]'""", "NUL", 1),
        (f"ID --args '{'[' * 100_000}'", "cannot be read as JSON", 1),
        ("ID --args ''", "--args is empty", 2),
        ("ID --args '[]' --kwargs ' '", "--kwargs is empty", 2),
        ("ID OTHER --args '[]'", "give one ID", 2),
        ("--all --args '[]'", "give one ID", 2),
        ("ID --per-second 1 --args '[]'", "give one ID", 2),
    ],
)
def test_arguments_that_could_not_be_staged_leave_the_job_dead(
    database_url: str, options: str, message: str, code: int
) -> None:
    first, second = bury(database_url, count=2)
    words = options.replace("ID", str(first)).replace("OTHER", str(second))
    result = run(database_url, f"dead retry {words} --yes")
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert ids_in(database_url, "dead_jobs") == [first, second]


def test_arguments_are_checked_before_the_question(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs:
        op = Operated(jobs, redis_url)
        (job_id,) = op.chain("fetch", flow=(flow := op.start()))
        jobs.look()
        jobs.die(job_id)
        for words in (f"dead retry {job_id}", f"flow retry {flow} --from fetch"):
            result = run(database_url, f"{words} --args nope")
            assert (result.exit_code, result.stdout) == (1, "")
            assert result.stderr.startswith("Error: the arguments cannot be read as JSON")


def test_arguments_of_a_registered_job_are_checked_by_its_parameters(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job(name="shop.edited")
    def edited(item: str, count: int = 1) -> None: ...

    monkeypatch.setattr("drain.jobs.options.look_up", lambda name: edited if name == "shop.edited" else None)
    (job_id,) = bury(database_url, "shop.edited", job_args=["tea"])
    with closing(postgres.connect(database_url, "test")) as connection, connection.transaction():
        for unfit in ('["tea", "two"]', "[]"):
            with pytest.raises(StageError, match="edited"):
                revive_edited(connection, Selection((job_id,)), job_id, Edit(unfit, ""))
        assert revive_edited(connection, Selection((job_id,)), job_id, Edit('["tea", 2]', "")) == 1


def test_a_node_of_a_flow_is_retried_with_new_arguments(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs:
        op = Operated(jobs, redis_url)
        flow = op.start()
        first, second = op.chain("fetch", "parse", flow=flow)
        other = op.stage(flow=flow, node="other")
        jobs.look()
        jobs.die(first)
        jobs.finish(other)
        jobs.look()
        for node in ("parse", "other", "none"):
            words = f"flow retry {flow} --from {node} --args '[1]' --yes"
            assert (run(database_url, words).exit_code, node) == (0 if node == "parse" else 1, node)
        assert run(database_url, f"flow retry {flow} --args [1]").exit_code == 2
        assert jobs.state(second) == "blocked"
        result = run(database_url, f"flow retry {flow} --from fetch --args '[\"tea\"]' --yes")
        assert result.stdout == f"retry: 1 job of flow {flow}\n"
    assert (staged(database_url, first)["args"], staged(database_url, second)["args"]) == ('["tea"]', "[1]")
