"""A line for each event in the life of a job, for `drain events`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

from rich.text import Text

from drain.contrib.events.life import Event
from drain.visible import visible
from drain.wording import clock, duration

_STYLES = {"failed": "yellow", "interrupted": "yellow", "dead": "red", "expired": "red", "finished": "green"}
_EVENT_WIDTH = max(map(len, ("delivered again", "interrupted", "superseded")))


def event_line(event: Event, *, with_day: bool) -> Text:
    """Build the line of one event: time by UTC, event, id, job, and what else is known.

    Args:
        event: The event.
        with_day: Show the day as well.
    """
    at = event.at.astimezone(UTC)
    time = f"{at:%Y-%m-%d %H:%M:%S}" if with_day else f"{at:%H:%M:%S}"
    # A time that no row keeps is that of the look: shown without its fraction.
    fraction = f".{at.microsecond // 1000:03}" if event.is_exact else "    "
    line = Text(f"{time}{fraction}  ")
    line.append(event.event.replace("_", " ").ljust(_EVENT_WIDTH), _STYLES.get(event.event))
    rest = "; ".join(_details(event))
    line.append(visible(f"  {event.id}  {event.job_name} [{event.queue}]{': ' if rest else ''}{rest}"))
    return line


def _details(event: Event) -> Iterator[str]:
    if event.attempt is not None and event.event not in ("finished",):
        yield f"attempt {event.attempt}"
    if event.attempt is not None and event.event == "finished" and event.attempt > 1:
        yield f"on attempt {event.attempt}"
    if event.error:
        yield event.error
    if event.until is not None:
        yield f"{'due' if event.event == 'staged' else 'waits until'} {clock(event.until)}"
    if event.superseded_by is not None:
        yield f"gave way to {event.superseded_by}"
    if event.seconds is not None:
        yield f"after {duration(event.seconds)}"
    if event.worker and event.event == "claimed":
        yield f"by {event.worker}"
