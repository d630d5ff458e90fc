"""`drain flow`."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext

import click

from drain import wire
from drain.commands.database import database
from drain.commands.explain import show_explanation, show_lines
from drain.commands.flow_changes import cancel, pause, resume, retry
from drain.commands.flow_forecast import forecast
from drain.config import Settings
from drain.read import dependencies, flow_graphs, flows, queries
from drain.read.explain import explain
from drain.read.snapshots import snapshot
from drain.terminal import flow_view
from drain.terminal.commandline import as_json_option, settings_options
from drain.terminal.values import json_default

_FLOW = click.argument("name", metavar="ID|NAME")
_SHOWN_PATH = 10


@click.group()
def flow() -> None:
    """Inspect and operate flows and batches.

    ID is the id of a flow; its name also works if exactly one unfinished flow has it. Reading needs the role
    drain_inspection; cancel also needs drain_operator. Only the tables' owner can retry, pause and resume.

    \b
    drain flow list --state failed
    drain flow explain onboarding
    drain flow retry 42 --from fetch
    """  # noqa: D301


@flow.command("list", short_help="List flows.")
@settings_options("database_url")
@click.option("--name", help="Only flows with this name.")
@click.option("--state", type=click.Choice(flows.STATES), help="Only flows in this state.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of flows.",
)
@as_json_option
def list_flows(settings: Settings, *, name: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """List flows, latest first.

    A flow with a dead member is failing while others can still run, then failed.

    \b
    drain flow list --state failed
    drain flow list --json | jq '.[].id'
    """  # noqa: D301
    with database(settings) as connection, snapshot(connection):
        found = flows.page(connection, limit, name=name, state=state)
        now = queries.now(connection)
    if as_json:
        click.echo(json.dumps([each.as_json() for each in found], default=json_default))
    elif found:
        flow_view.show_flows(found, now)
    else:
        click.echo("no flow matches", err=True)


@flow.command(short_help="Show one flow.")
@_FLOW
@settings_options("database_url")
@click.option("--graph", is_flag=True, help="Print a Mermaid flowchart.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Maximum number of members.",
)
@as_json_option
def show(settings: Settings, *, name: str, graph: bool, limit: int, as_json: bool) -> None:
    """Show a flow and its members by dependency. If --limit cuts some off, dead and running members come first.

    \b
    drain flow show 42
    drain flow show onboarding --graph
    drain flow show 42 --json | jq '.nodes[] | select(.state == "dead")'
    """  # noqa: D301
    with database(settings) as connection, snapshot(connection):
        found = flows.find(connection, name)
        nodes = flows.nodes(connection, found.id, limit)
        states = flows.states(connection, list(found.callbacks.values()))
        undo = dependencies.undo_of(connection, found.id)
        now = queries.now(connection)
    callbacks = {event: states[job_id] for event, job_id in found.callbacks.items()}
    if as_json:
        called = {event: {"id": found.callbacks[event], "state": state} for event, state in callbacks.items()}
        given = found.as_json() | {
            "callbacks": called,
            "undo": undo and undo._asdict(),
            "nodes": [node._asdict() for node in nodes],
        }
        click.echo(json.dumps(given, default=json_default))
    elif graph:
        click.echo(flow_view.as_mermaid(nodes))
    else:
        flow_view.show_flow(found, nodes, callbacks, undo, now)
    if len(nodes) < found.total:
        click.echo(f"{found.total - len(nodes):,} more members: --limit {found.total} shows them", err=True)


@flow.command("explain", short_help="Explain what holds a flow.")
@_FLOW
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def explain_flow(settings: Settings, *, name: str, as_json: bool) -> None:
    """Explain what holds a flow: a dead node, or the start of the longest chain.

    \b
    drain flow explain 42
    drain flow explain 42 --json | jq -r .holder.cause
    """  # noqa: D301
    redis = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
    with closing(redis) if redis else nullcontext(), database(settings) as connection:
        with snapshot(connection):
            found = flows.find(connection, name)
            is_held = found.state in flows.UNFINISHED and found.state != "paused"
            nodes = (
                flows.nodes(connection, found.id, flows.MOST_LOOKED_AT, unfinished=True) if is_held else []
            )
        path = flow_graphs.holding_path(nodes)
        holder = explain(connection, redis, path[0].id if path else found.id)
        undo = dependencies.undoing(connection, found.id)
    if as_json:
        given = {
            "flow": found.as_json(),
            "path": [node._asdict() for node in path],
            "holder": holder.as_json(),
        }
        click.echo(json.dumps(given, default=json_default))
        return
    show_lines([("flow", f"{found.words}: {found.state}, {flow_view.progress(found)}")])
    if path:
        more = f" -> {len(path) - _SHOWN_PATH:,} more" if len(path) > _SHOWN_PATH else ""
        show_lines([("node", " -> ".join(node.title for node in path[:_SHOWN_PATH]) + more)])
    show_explanation(holder)
    if path and path[0].is_dead and not undo:
        show_lines([("retry", f"`drain flow retry {found.id}` revives its dead members")])


for command in (forecast, cancel, retry, pause, resume):
    flow.add_command(command)
