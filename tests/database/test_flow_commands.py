"""Operators list, explain, pause, cancel and retry flows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import Result

import drain as drain_api
from drain.audit import audit
from drain.tables import edges
from tests.flows import Flows, flows
from tests.helpers import PATIENCE_SECONDS, wait_until
from tests.process.test_cli import drain, one_line_of

_STAGE = "SELECT drain_stage(%s::text, '[]', %s::text::jsonb)"


class Operated:
    """Flows made by SQL, and the commands for them."""

    def __init__(self, jobs: Flows, redis_url: str) -> None:
        self.jobs = jobs
        self.env = {"DRAIN_DATABASE_URL": jobs.url, "DRAIN_REDIS_URL": redis_url}

    def start(self, **options: Any) -> int:
        return self.start_with(**options)[0]

    def start_with(self, *events: str, **options: Any) -> list[int]:
        """Start a flow with callbacks; their ids follow its own."""
        with self.jobs.connection.transaction():
            ((flow_id,),) = self.jobs.connection.execute(
                "SELECT id FROM drain_flow(%s::text::jsonb)", (json.dumps(options),)
            ).fetchall()
            return [int(flow_id), *(self.stage("shop.mail", flow=flow_id, on=event) for event in events)]

    def stage(self, job_name: str = "m.f", **options: Any) -> int:
        ((job_id,),) = self.jobs.connection.execute(_STAGE, (job_name, json.dumps(options))).fetchall()
        return int(job_id)

    def chain(self, *names: str, flow: int) -> list[int]:
        """Stage nodes that wait for each other."""
        ids: list[int] = []
        for name in names:
            ids.append(self.stage(flow=flow, node=name, after=ids[-1:]))
        return ids

    def run(self, words: str, answer: str | None = None) -> Result:
        return drain(f"flow {words}", self.env, answer)

    def done(self, words: str) -> str:
        """Run a command that succeeds; what it prints."""
        result = self.run(words)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def shown(self, flow: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done(f"show {flow} --json"))
        return found

    def state(self, flow: int) -> str:
        return str(self.shown(flow)["state"])


@pytest.fixture
def op(database_url: str, redis_url: str) -> Iterator[Operated]:
    with flows(database_url, redis_url) as jobs:
        jobs.look()
        yield Operated(jobs, redis_url)


def words_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_flows_are_listed_with_their_states(op: Operated) -> None:
    jobs = op.jobs
    running = op.start(name="nightly")
    op.chain("a", "b", flow=running)
    failing = op.start(name="nightly", description="of Monday")
    (dead, _) = (op.stage(flow=failing), op.stage(flow=failing))
    failed = op.start(description="import")
    (end,) = op.chain("load", flow=failed)
    jobs.look()
    jobs.die(dead, end)
    jobs.look()
    found = json.loads(op.done("list --json"))
    assert [(each["id"], each["state"], each["finished"], each["total"], each["dead"]) for each in found] == [
        (failed, "failed", 0, 1, 1),
        (failing, "failing", 0, 2, 1),
        (running, "running", 0, 2, 0),
    ]
    assert [each["id"] for each in json.loads(op.done("list --json --state failed"))] == [failed]
    assert [each["id"] for each in json.loads(op.done("list --json --name nightly --limit 1"))] == [failing]
    lines = words_of(op.done("list"))
    assert lines[0] == "id flow state completed dead staged"
    assert re.fullmatch(
        rf"{failed} import failed 0 of 1 1 .* ago|{failed} import failed 0 of 1 1 now", lines[1]
    )
    assert op.run("list --state paused").stderr == "no flow matches\n"


def test_a_finished_flow_is_listed_and_explained(op: Operated) -> None:
    flow = op.start(name="etl")
    (member,) = op.chain("load", flow=flow)
    op.jobs.look()
    op.jobs.finish(member)
    op.jobs.look()
    assert f"{flow} etl finished 1 of 1 0" in words_of(op.done("list --state finished"))[1]
    lines = words_of(op.done(f"explain {flow}"))
    assert lines[0] == f"flow {flow} etl: finished, 1 of 1 completed"
    assert "why all members completed" in lines


def test_a_flow_is_shown_as_a_tree(op: Operated) -> None:
    flow, callback = op.start_with("success", name="onboarding")
    fetch = op.stage("shop.fetch", flow=flow, node="fetch")
    left = op.stage("shop.parse", flow=flow, node="left", after=[fetch])
    right = op.stage("shop.parse", flow=flow, node="right", after=[fetch])
    op.stage("shop.load", flow=flow, node="load", after=[left, right])
    op.jobs.finish(fetch)
    op.jobs.look()
    text = op.done("show onboarding")
    lines = words_of(text)
    assert f"flow {flow}, onboarding" in lines
    assert "members 1 of 4 completed" in lines
    assert f"on success job {callback}, blocked" in lines
    at = lines.index("node id state attempts took job")
    tree = [line[:14].rstrip() for line in text.splitlines()[at + 1 :]]
    assert tree == ["fetch", "  left", "    load (also", "  right"]
    assert re.match(rf"fetch {fetch} completed \S+ shop.fetch", lines[at + 1])
    assert max(map(len, text.splitlines())) <= 80
    assert [node["after"] for node in op.shown(flow)["nodes"]] == [[], [fetch], [fetch], [left, right]]


def test_an_archived_member_has_completed_and_a_lost_one_is_unknown(op: Operated) -> None:
    flow = op.start()
    archived, lost = op.chain("fetch", "load", flow=flow)
    op.jobs.finish(archived)
    op.jobs.look()
    for table in ("finished_jobs", "staged_jobs"):
        op.jobs.connection.execute(f"DELETE FROM {table} WHERE id IN (%s, %s)", (archived, lost))
    nodes = op.shown(flow)["nodes"]
    assert [(node["name"], node["state"]) for node in nodes] == [("fetch", "finished"), ("load", "unknown")]


def test_a_large_flow_is_truncated_after_its_dead_and_running_members(op: Operated) -> None:
    flow = op.start()
    ids = [op.stage(flow=flow) for _ in range(30)]
    op.jobs.die(ids[-1])
    op.jobs.move(ids[-3])
    op.jobs.look()
    result = op.run(f"show {flow} --limit 3")
    found = [line.split()[2] for line in result.stdout.splitlines() if line.startswith("job ")]
    assert found == [str(ids[0]), str(ids[-3]), str(ids[-1])]
    assert result.stderr == "27 more members: --limit 30 shows them\n"


def test_a_graph_shows_the_names_of_nodes_and_jobs_escaped(op: Operated) -> None:
    flow = op.start()
    first, second, same = op.chain('a"]; x', "<b>\x1b[31m", "m.f", flow=flow)
    unnamed = op.stage("m.<g>", flow=flow)
    assert op.done(f"show {flow} --graph").splitlines() == [
        "flowchart TD",
        f'    n{first}["a#34;#93;#59; x<br/>m.f<br/>waiting"]',
        f'    n{second}["#60;b#62;#92;x1b#91;31m<br/>m.f<br/>blocked"]',
        f'    n{same}["m.f<br/>blocked"]',
        f'    n{unnamed}["job {unnamed}<br/>m.#60;g#62;<br/>waiting"]',
        f"    n{first} --> n{second}",
        f"    n{second} --> n{same}",
    ]


def test_the_node_that_holds_a_flow_is_explained(op: Operated) -> None:
    flow = op.start(name="etl")
    op.stage(flow=flow, node="short")
    fetch, *_ = op.chain("fetch", "parse", "load", flow=flow)
    op.jobs.look()
    lines = words_of(op.done("explain etl"))
    assert lines[:3] == [
        f"flow {flow} etl: running, 0 of 4 completed",
        "node fetch -> parse -> load",
        f"job {fetch}, m.f, queue default",
    ]
    assert json.loads(op.done("explain etl --json"))["holder"]["cause"] == "next"
    op.chain(*(str(number) for number in range(12)), flow=flow)
    assert words_of(op.done("explain etl"))[1] == f"node {' -> '.join(map(str, range(10)))} -> 2 more"
    (late,) = op.chain("late", flow=flow)
    op.jobs.die(late)
    op.jobs.look()
    lines = words_of(op.done("explain etl"))
    assert lines[1] == "node late"
    assert "state dead" in lines
    assert lines[-1] == f"retry `drain flow retry {flow}` revives its dead members"


def test_a_cancelled_flow_calls_nothing_back(op: Operated) -> None:
    jobs = op.jobs
    flow, *callbacks = op.start_with("success", "complete", "dead", name="etl")
    first, second, third = op.chain("fetch", "parse", "load", flow=flow)
    later = jobs.stage(flow)
    jobs.finish(first)
    jobs.look()
    jobs.move(second)
    jobs.look()
    result = op.run("cancel etl", "y\n")
    assert "cancel flow" in result.stderr
    assert result.stdout.endswith(f"cancelled: flow {flow} etl, 2 members\n")
    jobs.look()
    jobs.look(walk=True)
    assert jobs.states(flow, second, third, later, *callbacks) == ["cancelled"] * 7
    assert op.state(flow) == "cancelled"
    again = one_line_of(op.run(f"cancel {flow} --yes"))
    assert again == f"Error: flow {flow} etl is cancelled; nothing was done"


def test_a_cancelled_flow_that_is_retried_ends(op: Operated) -> None:
    jobs = op.jobs
    flow, success, dead = op.start_with("success", "dead")
    first, second = op.chain("fetch", "parse", flow=flow)
    jobs.look()
    op.done(f"cancel {flow} --yes")
    jobs.look()
    assert op.done(f"retry {flow} --yes") == f"retry: 5 jobs of flow {flow}\n"
    jobs.look()
    assert jobs.states(flow, success, dead, first, second) == [*["blocked"] * 3, "waiting", "blocked"]
    for job_id in (first, second):
        jobs.finish(job_id)
        jobs.look()
    jobs.look()
    assert jobs.states(flow, success, dead) == ["finished", "waiting", "finished"]
    assert op.state(flow) == "finished"
    assert "is finished; nothing was done" in one_line_of(op.run(f"cancel {flow} --yes"))


def test_a_retry_revives_members_cancelled_with_a_dead_one(op: Operated) -> None:
    jobs, flow = op.jobs, op.start()
    first, second = op.chain("fetch", "parse", flow=flow)
    other, another = op.chain("look", "find", flow=flow)
    jobs.look()
    jobs.die(first, other)
    jobs.look()
    assert jobs.states(first, second, other, another) == ["failed", "cancelled"] * 2
    assert op.state(flow) == "failed"
    would = f"would retry: 2 jobs of flow {flow}\n  look: waiting\n  find: blocked\n"
    assert op.done(f"retry {flow} --from look --dry-run") == would
    assert jobs.states(first, second, other, another) == ["failed", "cancelled"] * 2
    result = op.run(f"retry {flow} --from look", "y\n")
    assert "retry 2 dead jobs of flow" in result.stderr
    assert result.stdout.endswith(f"retry: 2 jobs of flow {flow}\n")
    jobs.look()
    assert jobs.states(first, second, other, another) == ["failed", "cancelled", "waiting", "blocked"]
    op.done(f"retry {flow} --yes")
    jobs.look()
    assert jobs.states(first, second) == ["waiting", "blocked"]
    assert one_line_of(op.run(f"retry {flow}")).endswith(f"see `drain flow show {flow}`")
    assert "has no node 'none'" in one_line_of(op.run(f"retry {flow} --from none"))


def test_a_paused_flow_starts_nothing_and_does_not_end(op: Operated) -> None:
    jobs = op.jobs
    flow, complete = op.start_with("complete", name="etl")
    running, blocked = op.chain("fetch", "parse", flow=flow)
    ready = op.stage(flow=flow, node="ready")
    later = op.stage(flow=flow, node="later", run_in=3600)
    jobs.move(running)
    jobs.look()
    assert op.done("pause etl") == f"paused: flow {flow} etl, 4 jobs held\n"
    jobs.look()
    jobs.finish(running)
    jobs.look(walk=True)
    assert jobs.states(flow, blocked, ready, later, complete) == ["blocked"] * 5
    assert op.state(flow) == "paused"
    breaches = audit(jobs.connection, patience_seconds=0, overdue_seconds=0).breaches
    assert [each for each in breaches if each.check == "blocked"] == []
    assert "is already paused" in one_line_of(op.run("pause etl"))
    assert jobs.progress(flow)[-1] == "paused"
    explained = drain(f"explain {ready}", op.env).stdout
    assert f"drain flow resume {flow}`" in " ".join(explained.split())
    assert f"flow {flow} is paused" in " ".join(op.done("explain etl").split())
    would = f"would resume: flow {flow} etl\n  parse: waiting\n  ready: waiting\n  later: scheduled\n"
    assert op.done("resume etl --dry-run") == would
    assert op.state(flow) == "paused"
    assert op.done("resume etl") == f"resumed: flow {flow} etl\n"
    jobs.look()
    assert jobs.states(flow, blocked, ready, later) == ["blocked", "waiting", "waiting", "scheduled"]
    assert "is not paused" in one_line_of(op.run("resume etl"))


def test_a_flow_whose_members_finish_while_it_is_paused_ends_when_resumed(op: Operated) -> None:
    jobs = op.jobs
    flow, complete = op.start_with("complete")
    (job_id,) = op.chain("fetch", flow=flow)
    jobs.move(job_id)
    jobs.look()
    for _ in range(2):
        op.done(f"pause {flow}")
        jobs.look()
        op.done(f"resume {flow}")
    op.done(f"pause {flow}")
    jobs.finish(job_id)
    jobs.look(walk=True)
    assert jobs.states(flow, complete) == ["blocked"] * 2
    op.done(f"resume {flow}")
    jobs.look()
    assert jobs.states(flow, complete) == ["finished", "waiting"]
    assert "has ended" in one_line_of(op.run(f"pause {flow}"))


def test_what_the_leader_has_read_before_a_pause_does_not_start_a_member(
    op: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, flow = op.jobs, op.start()
    ids = op.chain("fetch", "parse", flow=flow)
    jobs.look()
    op.done(f"pause {flow}")
    jobs.look()
    op.done(f"resume {flow}")
    lock_children, pauses = edges.lock_children, [f"pause {flow}"]

    def lock(*given: Any) -> set[int]:
        """Pause between the leader's reading and its lock."""
        while pauses:
            op.done(pauses.pop())
        return lock_children(*given)

    monkeypatch.setattr(edges, "lock_children", lock)
    jobs.look()
    assert pauses == []
    jobs.look(walk=True)
    assert jobs.states(flow, *ids) == ["blocked"] * 3


def test_members_that_are_added_or_retried_during_a_pause_wait_for_its_end(op: Operated) -> None:
    jobs, flow = op.jobs, op.start()
    dead, dies, running = (op.stage(flow=flow, node=name) for name in ("dead", "dies", "running"))
    (_, blocked) = op.chain("first", "second", flow=flow)
    jobs.look()
    jobs.die(dead)
    jobs.look()
    jobs.move(dies, running)
    op.done(f"pause {flow}")
    jobs.die(dies)
    jobs.finish(running)
    added = op.stage(flow=flow, node="added")
    later = op.stage(flow=flow, node="later", run_in=3600)
    after = op.stage(flow=flow, node="after", after=[added, running])
    many = drain_api.stage_many(jobs.connection, "m.f", [[1], [2]], flow=flow)
    many += drain_api.stage_many(jobs.connection, "m.f", [[3]], flow=flow, after=[added])
    many.append(drain_api.stage(jobs.connection, "m.f", [4], flow=flow, idempotency_key="four"))
    jobs.look(walk=True)
    op.done(f"retry {flow} --from dead --yes")
    jobs.retry(dies)
    held = (dead, dies, added, *many[:2], many[3], later, after, many[2], blocked, flow)
    for _ in range(2):
        jobs.look(walk=True)
        assert jobs.states(*held) == ["blocked"] * len(held)
    breaches = audit(jobs.connection, patience_seconds=0, overdue_seconds=0).breaches
    assert [each for each in breaches if each.check == "blocked"] == []
    op.done(f"resume {flow}")
    jobs.look()
    assert jobs.states(*held) == [*["waiting"] * 6, "scheduled", *["blocked"] * 4]
    assert jobs.state(op.stage(flow=flow, node="free")) == "waiting"
    jobs.die(dead)
    jobs.look()
    jobs.retry(dead)
    assert jobs.state(dead) == "waiting"


@pytest.mark.parametrize("other", ["a member that joins", "a member that comes due"])
def test_a_pause_waits_for_transactions_that_change_the_flow(op: Operated, other: str) -> None:
    jobs, flow = op.jobs, op.start()
    due = op.stage(flow=flow, run_in=3600)
    jobs.look()
    with ThreadPoolExecutor(1) as threads, jobs.open() as late:
        if other == "a member that joins":
            options = json.dumps({"flow": flow, "node": "late"})
            ((job_id,),) = late.execute(
                "SELECT drain_stage('m.f', '[]', %s::text::jsonb)", (options,)
            ).fetchall()
        else:
            late.execute("UPDATE staged_jobs SET scheduled_at = staged_at WHERE id = %s", (job_id := due,))
        pause = threads.submit(op.done, f"pause {flow}")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: jobs.connection.execute(waits).fetchall() == [(1,)])
        late.commit()
        pause.result(PATIENCE_SECONDS)
    assert jobs.states(flow, job_id) == ["blocked"] * 2


def test_a_paused_flow_can_be_cancelled(op: Operated) -> None:
    jobs, flow = op.jobs, op.start()
    ids = op.chain("fetch", "parse", flow=flow)
    jobs.look()
    op.done(f"pause {flow}")
    op.done(f"cancel {flow} --yes")
    jobs.look()
    assert jobs.states(flow, *ids) == ["cancelled"] * 3
    assert op.state(flow) == "cancelled"
    op.done(f"retry {flow} --yes")
    jobs.look()
    assert jobs.states(flow, *ids) == ["blocked", "waiting", "blocked"]


def test_cancelling_a_queue_leaves_flows_and_their_pauses(op: Operated) -> None:
    jobs, flow = op.jobs, op.start()
    (other,) = op.chain("other", flow=flow)
    here = op.stage()
    jobs.connection.execute("UPDATE staged_jobs SET queue = 'mail' WHERE id = %s", (other,))
    jobs.look()
    op.done(f"pause {flow}")
    assert drain("cancel --queue default --yes", op.env).stdout == "cancelled: 1 job\n"
    jobs.look()
    assert jobs.states(here, flow, other) == ["cancelled", "blocked", "blocked"]
    assert op.state(flow) == "paused"


def test_a_pause_cancelled_by_its_id_can_be_repeated(op: Operated) -> None:
    jobs, flow = op.jobs, op.start()
    (member,) = op.chain("fetch", flow=flow)
    for _ in range(2):
        op.done(f"pause {flow}")
        jobs.look()
        assert jobs.state(member) == "blocked"
        jobs.cancel(flow + 1)
        jobs.look()
        assert jobs.states(member, flow + 1) == ["waiting", "cancelled"]


def test_a_name_stands_for_the_only_unfinished_flow(op: Operated) -> None:
    first, second = op.start(name="etl"), op.start(name="etl")
    op.chain("a", flow=second)
    (member,) = op.chain("a", flow=first)
    assert f"several unfinished flows are named 'etl': {first}, {second}" in one_line_of(op.run("show etl"))
    op.jobs.finish(member)
    op.jobs.look()
    assert op.state(first) == "finished"
    assert json.loads(op.done("show etl --json"))["id"] == second


def test_a_name_may_look_like_the_id_of_a_job(op: Operated) -> None:
    flow = op.start(name="etl")
    (member,) = op.chain("a", flow=flow)
    for name in (str(member), f"0{flow}"):
        assert "no flow has" in one_line_of(op.run(f"show {name}x"))
        other = op.start(name=name)
        op.chain("b", flow=other)
        assert json.loads(op.done(f"show {name} --json"))["id"] == other
    op.start(name=str(flow))
    assert json.loads(op.done(f"show {flow} --json"))["id"] == flow


def test_a_command_that_cannot_get_a_lock_is_one_error(op: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.commands.database._LOCK_SECONDS", 1)
    flow = op.start()
    with op.jobs.open() as other:
        op.jobs.stage(flow=flow, on=other)
        assert "another transaction has held a lock for 1 s; try again" in one_line_of(
            op.run(f"pause {flow}")
        )
    op.done(f"pause {flow}")


@pytest.mark.parametrize(
    "words", ["show", "explain", "forecast", "cancel --yes", "retry --yes", "pause", "resume"]
)
def test_an_unknown_flow_is_one_error(op: Operated, words: str) -> None:
    job_id = op.jobs.stage()
    member = op.stage(flow=(flow := op.start(name="etl")), node="fetch")
    for name in (str(job_id), "99999", "9" * 30, "none"):
        assert f"no flow has the id, and no unfinished one the name '{name}'" in one_line_of(
            op.run(f"{words} {name}")
        )
    assert (
        one_line_of(op.run(f"{words} {member}"))
        == f"Error: job {member} is not a flow, but node fetch of flow {flow} etl: see `drain flow show {flow}`"
    )
    hostile = drain(f"flow {words} \x1b[31m", op.env)
    assert "\\x1b[31m" in one_line_of(hostile)
    elsewhere = drain(f"flow {words} {flow}", op.env | {"DRAIN_SCHEMA": "elsewhere"})
    assert elsewhere.exit_code == 1
    assert "Traceback" not in elsewhere.output


def test_control_characters_in_names_are_escaped(op: Operated) -> None:
    flow = op.start(name="a\x1b[31m", description="b\x1b[2J")
    op.stage(flow=flow, node="c\x1b[0m")
    for words in (
        "list",
        f"show {flow}",
        f"explain {flow}",
        f"pause {flow}",
        f"resume {flow}",
        f"cancel {flow} --yes",
    ):
        text = op.done(words)
        assert "\x1b" not in text
        assert "\\x1b" in text


def test_a_job_names_its_flow(op: Operated) -> None:
    flow = op.start(name="etl")
    (job_id,) = op.chain("fetch", flow=flow)
    assert f"flow node fetch of flow {flow} etl" in words_of(drain(f"show {job_id}", op.env).stdout)
    assert json.loads(drain(f"show {job_id} --json", op.env).stdout)["flow"]["id"] == flow
    assert "flow" not in json.loads(drain(f"show {op.jobs.stage()} --json", op.env).stdout)


@pytest.mark.parametrize("state", ["failing", "cancelled"])
def test_a_job_names_its_flow_in_every_state(op: Operated, state: str) -> None:
    jobs, flow = op.jobs, op.start(name="etl")
    done, running, dead, after = (op.chain(node, flow=flow)[0] for node in "abcd")
    unneeded = op.stage(flow=flow, node="e", after=[[done, "only"]])
    op.start(name="later")
    jobs.finish(done)
    jobs.die(dead)
    jobs.move(running)
    jobs.look()
    if state == "cancelled":
        jobs.cancel(flow, after)
        jobs.look()
    assert op.state(flow) == state
    for job_id, node in zip((done, running, dead, after, unneeded), "abcde", strict=True):
        found = json.loads(drain(f"show {job_id} --json", op.env).stdout)["flow"]
        assert (found["id"], found["node"]) == (flow, node)
        assert f"job {job_id} is not a flow, but node {node} of" in one_line_of(op.run(f"show {job_id}"))
