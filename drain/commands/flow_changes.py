"""`drain flow cancel`, `retry`, `pause` and `resume`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import click

from drain.commands.cancel import cancel_selected
from drain.commands.database import database
from drain.commands.selecting import STATEMENT_SECONDS, by_state, confirm, edit_options, repeated
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import count, visible
from drain.jobs.editing import Edit, check, revive_edited
from drain.read import flow_graphs, flows, queries
from drain.read.flows import Flow
from drain.tables import cancellations, changes, dead as dead_jobs, flow_pauses
from drain.tables.selections import Selection
from drain.terminal.commandline import settings_options

_FLOW = click.argument("name", metavar="ID|NAME")
_YES = click.option("--yes", is_flag=True, help="Skip the confirmation.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the jobs' new states, and roll back.")
# Callbacks that have not started.
_WAITING = ("blocked", "waiting", "scheduled")
_SHOWN_NODES = 100


@click.command(short_help="Cancel a flow.")
@_FLOW
@settings_options("database_url")
@_YES
def cancel(settings: Settings, *, name: str, yes: bool) -> None:
    """Cancel a flow: its unfinished members, and its callbacks that have not started.

    A running member is interrupted at its next heartbeat. After an interruption, run the command again.

    \b
    drain flow cancel 42
    drain flow cancel onboarding --yes
    """  # noqa: D301
    with database(settings, STATEMENT_SECONDS) as connection:
        found = flows.find(connection, name)
        counted = changes.count(connection, _members(connection, found))
    if found.state == "finished" or (found.state == "cancelled" and not sum(counted)):
        raise DrainError(f"flow {found.words} is {found.state}; nothing was done")
    confirm(visible(f"cancel flow {found.words} ({by_state(counted)})?"), yes=yes)
    with database(settings, STATEMENT_SECONDS) as connection:
        states = flows.states(connection, list(found.callbacks.values()))
        ends = [found.id, *(job_id for job_id, state in states.items() if state in _WAITING)]
        # First, so that no callback fires, and no member joins.
        repeated(partial(cancellations.cancel_staged, connection), Selection(tuple(ends)))
        cancelled = sum(1 for _ in cancel_selected(connection, _members(connection, found)))
        # Last, so that no member starts.
        flow_pauses.drop_gate(connection, found.id)
    click.echo(visible(f"cancelled: flow {found.words}, {count(cancelled, 'member')}"))


def _members(connection: Connection, found: Flow) -> Selection:
    return Selection(tuple(job_id for job_id, _ in flows.unfinished(connection, found.id)))


@click.command(short_help="Retry the dead members of a flow.")
@_FLOW
@settings_options("database_url")
@click.option("--from", "node", metavar="NODE", help="Only this node and those after it.")
@edit_options
@_DRY_RUN
@_YES
def retry(
    settings: Settings, *, name: str, node: str | None, edit: Edit | None, dry_run: bool, yes: bool
) -> None:
    """Retry the dead members of a flow, those cancelled with them, and the flow itself if it was cancelled.

    --args and --kwargs replace the arguments of the node given by --from.

    \b
    drain flow retry 42 --dry-run
    drain flow retry 42 --from fetch --yes
    drain flow retry 42 --from fetch --args '["tea"]'
    """  # noqa: D301
    if edit is not None and node is None:
        raise click.UsageError("give the node with --from for --args or --kwargs")
    with database(settings, STATEMENT_SECONDS) as connection:
        asked_at = queries.now(connection)
        found = flows.find(connection, name)
        ids = _dead(connection, found, node)
        if edit is not None and not (ids and check(connection, ids[0], edit)):
            raise DrainError(f"node {node!r:.300} of flow {found.words} is not dead; nothing was done")
        selection = dead_jobs.Selection(tuple(ids), died_by=asked_at)
        number = dead_jobs.count(connection, selection)
        undone = dead_jobs.being_undone(connection, selection) if found.undone_by else []
    if undone:
        raise DrainError(f"{undone[0]}; nothing was done")
    if not number:
        raise DrainError(f"flow {found.words} has no dead member here: see `drain flow show {found.id}`")
    confirm(visible(f"retry {count(number, 'dead job')} of flow {found.words}?"), yes=yes or dry_run)
    with database(settings, STATEMENT_SECONDS) as connection, connection.transaction(force_rollback=dry_run):
        nodes = flows.nodes(connection, found.id, _SHOWN_NODES, unfinished=True) if dry_run else ()
        # In one transaction: a callback must not find another member dead.
        if edit is None:
            revived = dead_jobs.revive(connection, selection)
        else:
            revived = revive_edited(connection, selection, ids[0], edit)
        states = flows.states(connection, [each.id for each in nodes if each.is_dead])
        why = dead_jobs.why_left(connection, selection, "retry") if revived < number else ""
        if not revived:
            raise DrainError(f"{why}; nothing was done")
    click.echo(
        visible(f"{'would retry' if dry_run else 'retry'}: {count(revived, 'job')} of flow {found.words}")
    )
    if why:
        click.echo(f"left {count(number - revived, 'job')}: {why}", err=True)
    _show_states((each.title, states[each.id]) for each in nodes if states.get(each.id) in _WAITING)


def _dead(connection: Connection, found: Flow, node: str | None) -> list[int]:
    """Return the ids of unfinished members; first that of the node, unless it has finished."""
    members = dict(flows.unfinished(connection, found.id))
    if node is not None:
        wanted = flow_graphs.descendants(flows.nodes(connection, found.id, max(found.total, 1)), node)
        if not wanted:
            raise DrainError(
                f"flow {found.words} has no node {node!r:.300}: see `drain flow show {found.id}`"
            )
        members = {job_id: members[job_id] for job_id in wanted if job_id in members}
    ids = [*members.values()]
    if found.state == "cancelled":
        states = flows.states(connection, list(found.callbacks.values()))
        ids += [found.id, *(job_id for job_id, state in states.items() if state == "cancelled")]
    return ids


def _show_states(found: Iterable[tuple[str, str]]) -> None:
    for title, state in found:
        click.echo(visible(f"  {title}: {state}"))


@click.command(short_help="Pause a flow.")
@_FLOW
@settings_options("database_url")
def pause(settings: Settings, *, name: str) -> None:
    """Pause a flow: staged members do not start, nor do those added or retried later. Members in flight still run.

    \b
    drain flow pause 42
    """  # noqa: D301
    with database(settings, STATEMENT_SECONDS) as connection:
        found = flows.find(connection, name)
        held = repeated(partial(_pause, connection), found)
    click.echo(visible(f"paused: flow {found.words}, {count(held, 'job')} held"))


def _pause(connection: Connection, found: Flow) -> int:
    with connection.transaction():
        if not flow_pauses.lock(connection, found.id):
            raise DrainError(f"flow {found.words} has ended; nothing was done")
        if flows.find(connection, str(found.id)).state == "paused":
            raise DrainError(f"flow {found.words} is already paused")
        return flow_pauses.pause(connection, found.id)


@click.command(short_help="Resume a paused flow.")
@_FLOW
@settings_options("database_url")
@_DRY_RUN
def resume(settings: Settings, *, name: str, dry_run: bool) -> None:
    """Resume a paused flow.

    \b
    drain flow resume 42 --dry-run
    drain flow resume 42
    """  # noqa: D301
    with database(settings, STATEMENT_SECONDS) as connection, connection.transaction(force_rollback=dry_run):
        found = flows.find(connection, name)
        if not flow_pauses.resume(connection, found.id):
            raise DrainError(f"flow {found.words} is not paused: see `drain flow show {found.id}`")
        freed = flows.freed(connection, found.id, _SHOWN_NODES) if dry_run else ()
    click.echo(visible(f"{'would resume' if dry_run else 'resumed'}: flow {found.words}"))
    _show_states(freed)
