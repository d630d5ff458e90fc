"""Templates with escaped text and uniform numbers and times."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from drain import formatting
from drain.formatting import visible


class Templates:
    """Templates; `render` is thread-safe."""

    def __init__(self) -> None:
        # No auto-reload: installed files do not change.
        self._environment = Environment(
            loader=PackageLoader("drain.contrib.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_finalize,
        )
        self._environment.filters.update(
            count=_count,
            duration=formatting.duration,
            clock=formatting.clock,
            time=_time,
            json=_json,
            rounded=rounded,
            quoted=_quoted,
            jobs=lambda number: formatting.count(number, "job"),
        )

    def render(self, name: str, values: dict[str, Any]) -> str:
        """Render a template."""
        return self._environment.get_template(name).render(values)


def _finalize(value: Any) -> Any:
    """Make direction marks and control characters visible."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, lines=True)
    return "" if value is None else value


def _count(number: int | None, up_to: int | None = None) -> str:
    """Format a number; one that reaches the bound `up_to` means "or more"."""
    if number is None:
        return "?"
    return f"{number:,} or more" if up_to is not None and number >= up_to else f"{number:,}"


def rounded(number: int) -> int:
    """Round an estimate to two digits."""
    return round(number, 2 - len(str(number))) if number >= 100 else number


def _time(moment: datetime | None, now: datetime | None = None) -> Markup:
    if moment is None:
        return Markup("")
    clock = formatting.clock(moment)
    text = formatting.relative(moment, now) if now is not None else clock
    machine = moment.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(machine, clock, text)


def _quoted(text: str) -> str:
    """Quote a value of a search."""
    return (
        text
        if text and not any(c.isspace() or c in '"\\:' for c in text)
        else '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    )


def _json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=str)
