"""Blocked jobs: which predecessor holds one, and why that one waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from drain.errors import UnknownJobError
from drain.formatting import clock, count, relative
from drain.read import dependencies, flows, queries
from drain.read.dependencies import Predecessor
from drain.read.explain import obstacles
from drain.read.explain.estimates import none
from drain.read.explain.explanation import Explanation, Finding
from drain.read.explain.situation import Situation
from drain.tables.flow_pauses import GATE

# Jobs followed from a blocked job to the one that holds it, and predecessors looked at of each.
LONGEST_CHAIN = 1_000
_LOOKED_AT = 100
_WORDS = {"finished": "completed", "unknown": "in no table"}


class Chain(NamedTuple):
    """Way from a blocked job to the job that holds it.

    Attributes:
        direct: Its own predecessor.
        root: The last one followed.
        length: Jobs followed.
        others: Further predecessors of its own, up to a bound.
    """

    direct: Predecessor
    root: Predecessor
    length: int
    others: int


def explain(situation: Situation, explain_other: Callable[[Situation], Explanation]) -> Explanation:
    """Explain a blocked job.

    Args:
        explain_other: Explains the job that holds it.
    """
    chain = _follow(situation)
    if chain is None and situation.job["job_name"] == GATE:
        finding = _of_gate(situation, int(situation.job["id"]))
    elif chain is None:
        why = "it is blocked, but waits for no job: see `drain audit`"
        finding = Finding("blocked", why, situation.job["staged_at"], none("it waits for nothing"))
    elif chain.root.has_ended and (no_leader := obstacles.no_leader(situation)):
        finding = no_leader._replace(since=situation.job["staged_at"])
    else:
        finding = _finding(situation, chain, explain_other)
    return situation.explanation("blocked", finding)


def _follow(situation: Situation) -> Chain | None:
    path: list[Predecessor] = []
    others, job_id, seen = 0, int(situation.job["id"]), set[int]()
    while job_id not in seen and len(path) < LONGEST_CHAIN:
        seen.add(job_id)
        found = dependencies.awaited(situation.connection, job_id, _LOOKED_AT)
        if not found:
            break
        path.append(min(found, key=lambda each: (not each.holds, each.has_ended)))
        others = others if path[1:] else len(found) - 1
        if path[-1].state != "blocked":
            break
        job_id = path[-1].awaited_id
    return Chain(path[0], path[-1], len(path), others) if path else None


def _finding(
    situation: Situation, chain: Chain, explain_other: Callable[[Situation], Explanation]
) -> Finding:
    root, starts_at = chain.root, situation.job["starts_at"]
    others = f" and {_number(chain.others)}" if chain.others else ""
    back = (
        f", and {count(chain.length - 1, 'job')} further back for job {_named(root)}"
        if chain.length > 1
        else ""
    )
    state = _WORDS.get(root.state, root.state)
    rest, estimate, more = _of_root(situation, root, explain_other)
    why = f"it waits for job {_named(chain.direct)}{others}{back}; job {root.awaited_id} is {state}: {rest}"
    if starts_at is not None and starts_at > situation.now:
        why += f"; it will not start before {clock(starts_at)}, {relative(starts_at, situation.now)}"
        more["starts_at"] = starts_at
    details = {
        "waits_for": chain.direct.id,
        "others": chain.others,
        "holder": root.awaited_id,
        "holder_state": root.state,
        "length": chain.length,
    }
    return Finding("blocked", why, situation.job["staged_at"], none(estimate), details | more)


def _of_root(
    situation: Situation, root: Predecessor, explain_other: Callable[[Situation], Explanation]
) -> tuple[str, str, dict[str, Any]]:
    """Return why the job that holds it waits, why there is no estimate, and details."""
    job_id = root.awaited_id
    if root.state == "blocked":
        why = f"the chain is circular, broken, or longer than {LONGEST_CHAIN:,} jobs"
        return why, "the start of its chain is unknown", {}
    if root.state == "paused":
        return _of_gate(situation, job_id).why, "waits for `drain flow resume`", {"holder_cause": "paused"}
    if root.holds:
        undo = dependencies.undoing(situation.connection, job_id)
        first = f"it is undone by {undo}; " if undo else f"retry it with `drain dead retry {job_id}`, or "
        why = f"{first}discard it, which cancels the jobs that it holds"
        return why, f"depends on a {'discard' if undo else 'retry'} of job {job_id}", {}
    if root.has_ended:
        releases = root.state in ("finished", "superseded") or root.on_failure in ("run", "only")
        why = "the leader is about to " + (
            "unblock the jobs that wait for it" if releases else "cancel the jobs that wait for it"
        )
        return why, "depends on the leader", {}
    estimate = f"depends on when job {job_id} finishes"
    try:
        found = explain_other(situation.of(queries.job(situation.connection, job_id)))
    except UnknownJobError:
        return "it is about to end", estimate, {}
    return found.finding.why, estimate, {"holder_cause": found.finding.cause}


def _of_gate(situation: Situation, gate_id: int) -> Finding:
    flow_id = flows.of_gate(situation.connection, gate_id)
    why = f"flow {flow_id} is paused: start it again with `drain flow resume {flow_id}`"
    return Finding(
        "paused", why, situation.job["staged_at"], none("waits for `drain flow resume`"), {"flow": flow_id}
    )


def _named(predecessor: Predecessor) -> str:
    stands = predecessor.awaited_id != predecessor.id
    return f"{predecessor.id}{f' (superseded by job {predecessor.awaited_id})' if stands else ''}"


def _number(others: int) -> str:
    return "many others" if others >= _LOOKED_AT - 1 else count(others, "other")
