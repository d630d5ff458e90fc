"""One job, then its earlier deaths."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any

from rich.console import Console

from drain.formatting import clock, duration, relative, visible
from drain.read.dependencies import IF_IT_DIES
from drain.tables.columns import BLOCKED_UNTIL
from drain.tables.failures import earlier_errors, seconds_of, summary_of, title_of
from drain.terminal.values import WORDS_OF_STATES, as_text, json_default

# Shown elsewhere, or meaningless to people; --json has them.
_NOT_SHOWN = frozenset({"last_error", "history", "salt", "finished_xid", "died_xid"})
_TITLES = {"waits_for": "waits for", "waited_for_by": "waited for by", "undone_by": "undone by"}
_GAP = 2
_RESULT_CHARACTERS = 500


def show_job(job: dict[str, Any], now: datetime) -> None:
    """Print a job; `now` by the database's clock."""
    console = Console(highlight=False, markup=False)
    _show_fields(job, now, console)
    history = job.get("history") or []
    for number, life in enumerate(history if isinstance(history, list) else [history], 1):
        console.print(f"\nearlier death {number}")
        _show_fields(life if isinstance(life, dict) else {"life": life}, now, console)


def _show_fields(fields: dict[str, Any], now: datetime, console: Console) -> None:
    width = max(map(len, fields), default=0) + _GAP
    for name, value in fields.items():
        if value is not None and name not in _NOT_SHOWN and value != BLOCKED_UNTIL:
            lines = _folded(_lines(name, value, now, console.width - width), console.width - width)
            for title, line in zip_longest([visible(_TITLES.get(name, name))], lines, fillvalue=""):
                console.print(f"{title:{width}}{line}", soft_wrap=True)
    if error := fields.get("last_error"):
        texts = error if isinstance(error, dict) else {"message": error}
        summary = visible(f"{texts.get('type', 'error')}: {texts.get('message', '')}", lines=True)
        for title, line in zip_longest(
            ["last_error"], _folded(summary.splitlines(), console.width - width), fillvalue=""
        ):
            console.print(f"{title:{width}}{line}", style="red", soft_wrap=True)
        # Not folded, so that it can be copied as a traceback.
        console.print(visible(str(texts.get("traceback", "")).rstrip("\n"), lines=True), soft_wrap=True)
        for earlier in earlier_errors(error):
            console.print(_earlier(earlier), soft_wrap=True)


def _earlier(error: dict[str, Any]) -> str:
    """Format `attempt 2 failed after 1.2s by host:7: OSError: no answer`."""
    seconds, worker = seconds_of(error), error.get("worker")
    words = [
        title_of(error).lower(),
        f"after {duration(seconds)}" if seconds is not None else "",
        f"by {worker}" if worker else "",
    ]
    return visible(f"{' '.join(filter(None, words))}: {summary_of(error)}")


def _lines(name: str, value: Any, now: datetime, width: int) -> list[str]:
    if isinstance(value, dict) and name in _PARTS:
        return _PARTS[name](value, now)
    if name == "steps":
        return [_step(step, now) for step in value]
    if name.endswith("_at") and isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo:
        return [f"{clock(value)}, {relative(value, now)}"]
    if name == "state":
        value = WORDS_OF_STATES.get(value, value)
    if name == "result" and len(text := json.dumps(value, ensure_ascii=False)) > _RESULT_CHARACTERS:
        return [f"{visible(text[:_RESULT_CHARACTERS])} ... ({len(text)} characters; --json shows all)"]
    text = visible(as_text(value))
    if isinstance(value, dict | list) and len(text) > width:
        indented = json.dumps(value, ensure_ascii=False, default=json_default, indent=2)
        return [visible(line) for line in indented.splitlines()]
    return [text]


def _other(job: dict[str, Any]) -> str:
    """Format `job 7, running; if it dies: cancel`."""
    replaced = f", superseded by job {job['superseded_by']}" if "superseded_by" in job else ""
    on_failure = f"; if it dies: {IF_IT_DIES[job['on_failure']]}" if job.get("is_met") is False else ""
    return f"job {job['id']}{replaced}, {WORDS_OF_STATES.get(job['state'], job['state'])}{on_failure}"


def _flow(found: dict[str, Any], _now: datetime) -> list[str]:
    return [visible(found["words"])]


def _undo(undo: dict[str, Any], _now: datetime) -> list[str]:
    """Format `job 7, dead: failed 3 times; last: OSError: no answer`."""
    why = f": {undo['explanation']}" if undo["explanation"] else ""
    return [visible(f"job {undo['id']}, {WORDS_OF_STATES.get(undo['state'], undo['state'])}{why}")]


def _others(found: dict[str, Any], _now: datetime) -> list[str]:
    left = found["count"] - len(found["jobs"])
    return [*map(_other, found["jobs"]), *([f"and {left:,} more"] if left else [])]


def _step(step: dict[str, Any], now: datetime) -> str:
    """Format `charge, 1.2s, 3 minutes ago: "payment-42"`."""
    result = json.dumps(step["result"], ensure_ascii=False, default=json_default)
    cut = "…" if len(result) > _RESULT_CHARACTERS else ""
    when = f"{duration(step['seconds'])}, {relative(step['recorded_at'], now)}"
    return visible(f"{step['name']}, {when}: {result[:_RESULT_CHARACTERS]}{cut}")


def _progress(progress: dict[str, Any], now: datetime) -> list[str]:
    """Format `340 of 1,000 (34 %), page 7, 2.1s ago`."""
    done, total, text = progress["done"], progress["total"], progress["text"]
    of = "" if total is None else f" of {total:,} ({int(100 * done / total) if total else 100} %)"
    words = [f"{done:,}{of}", *([visible(text)] if text else []), relative(progress["reported_at"], now)]
    return [", ".join(words)]


_PARTS: Mapping[str, Callable[[dict[str, Any], datetime], list[str]]] = {
    "progress": _progress,
    "flow": _flow,
    "waits_for": _others,
    "waited_for_by": _others,
    "undone_by": _undo,
}


def _folded(lines: Sequence[str], width: int) -> list[str]:
    folded: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        folded += textwrap.wrap(
            line, max(width, 20), subsequent_indent=indent if len(lines) > 1 else "", break_on_hyphens=False
        ) or [""]
    return folded
