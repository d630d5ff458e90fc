"""Stack of a running job: a line for each call, fitted to the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from drain.explain.stack import Call, JobStack
from drain.visible import visible
from drain.wording import count, duration, relative

# Least width of the paths, and the part of the width that names of functions may take.
_LEAST, _SHARE = 20, 0.45


def show_stack(stack: JobStack, *, whole: bool = False) -> None:
    """Print where a job is, the innermost call last; the calls of the worker that lead to it only if it is whole."""
    console = Console(highlight=False, markup=False)
    claim = stack.claim
    seconds = (claim["now"] - claim["claimed_at"]).total_seconds()
    ends = relative(claim["lease_expires_at"], claim["now"])
    lines = [
        f"job {claim['id']}, {visible(claim['job_name'])}, queue {visible(claim['queue'])}",
        f"attempt {claim['attempt']}, claimed {duration(seconds)} ago; lease ends {ends}",
        f"in {visible(stack.place)} of {visible(stack.process)}",
    ]
    for line in lines:
        console.print(Text(line), overflow="fold")
    outer = 0 if whole else stack.outer
    if outer:
        console.print(f"  ({count(outer, 'call')} of the worker before these: --all)", style="dim")
    _show_calls(console, stack.calls[outer:])
    if stack.beside:
        console.print("\nthe thread of the event loop is busy meanwhile:", style="yellow")
        _show_calls(console, stack.beside)


def _show_calls(console: Console, calls: Sequence[Call]) -> None:
    names = [visible(call.function) for call in calls]
    widest = min(max(map(len, names), default=0), int(console.width * _SHARE))
    for call, name in zip(calls, names, strict=True):
        place = f"{visible(call.file)}:{call.line}" if call.file else ""
        shown = _end(place, max(_LEAST, console.width - widest - 4))
        console.print(Text(f"  {_end(name, widest):{widest}}  {shown}"), soft_wrap=True)


def _end(text: str, room: int) -> str:
    return text if len(text) <= room else f"…{text[1 - room :]}"
