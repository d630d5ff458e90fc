"""Self-contained HTML page without scripts, below a megabyte."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from drain.errors import ConfigError
from drain.pipeline.stats.drawing import draw, name
from drain.pipeline.stats.plots import Plot, plots
from drain.pipeline.stats.report import Report
from drain.pipeline.stats.tables import Table, errors, tables, weeks
from drain.pipeline.stats.words import count, seconds, share

_MOST_ROWS = 50
_MOST_CHARACTERS = 500
# Both schemes' colours differ for any colour vision, with a contrast to the card of at least 3.
_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --line: #e1e4ea; --text: #1f2430; --dim: #596274;
  --bad: #b42318; --c0: #1f7fc4; --c1: #d57a00; --c2: #005c46; --c3: #a83279; --c4: #2b303b; --c5: #8c929c; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12151b; --card: #1b1f27; --line: #333945; --text: #e6e8ec; --dim: #a3acbb;
    --bad: #ff8a7a; --c0: #3f97dc; --c1: #f2b13c; --c2: #7fddbf; --c3: #ec76ac; --c4: #f2f4f7; --c5: #6a717c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 2rem 3rem; max-width: 1500px; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 0; }
.about { color: var(--dim); margin: .1rem 0 .5rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.2rem, 1fr)); gap: .8rem; margin: 1rem 0; }
.fact, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; min-width: 0; }
.fact { padding: .6rem .9rem; }
.fact b { display: block; font-size: 1.15rem; font-weight: 600; }
.fact span { color: var(--dim); font-size: .8rem; }
.fact.bad b { color: var(--bad); }
section { padding: .9rem 1.1rem; margin-top: 1rem; }
.plots { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; margin-top: 1rem; }
.plots section { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: .4rem 0; padding: 0;
  font-size: .85rem; }
.legend svg { width: 24px; height: 12px; margin-right: .4rem; vertical-align: -1px; }
.plot { position: relative; margin: 1rem 2.6rem 2.9rem 4rem; height: 220px; font-size: .8rem; color: var(--dim); }
.plot svg { width: 100%; height: 100%; display: block; overflow: hidden; }
.y span, .x span { position: absolute; line-height: 1rem; }
.y span { right: 100%; margin: 0 .5rem -.5rem 0; white-space: nowrap; }
.x span { top: 100%; width: 5rem; margin: .4rem 0 0 -2.5rem; text-align: center; }
path { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--line); fill: none; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.bars path { fill: currentColor; }
.lines path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; }
.lines .grid { stroke: var(--line); stroke-width: 1; }
.lines .n1 { stroke-dasharray: 7 5; } .lines .n2 { stroke-dasharray: 1 5; stroke-width: 3; }
summary { cursor: pointer; color: var(--dim); }
.scroll { overflow: auto; margin-top: .4rem; }
details .scroll { max-height: 30rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
thead th { position: sticky; top: 0; background: var(--card); color: var(--dim); font-weight: 500; min-width: 6.2rem; }
th, td { text-align: right; padding: .28rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: inherit; white-space: normal; }
.text { text-align: left; white-space: normal; min-width: 9rem; }
@media (min-width: 1000px) {
  .plots { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
  .plots section:first-child { grid-column: 1 / -1; }
}
@media (max-width: 700px) {
  body { padding: 1rem .8rem 2rem; }
  section { padding: .8rem; }
  .x span:nth-child(even):nth-last-child(even) { display: none; }
}
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1><p class="about">{about}</p>
<div class="facts">{facts}</div>
{weeks}
<div class="plots">{plots}</div>
{errors}
{tables}
</main>
</body>
</html>
"""


def check(path: Path) -> None:
    """Check that a page can be written, before its hours of work."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {path.parent}; create it, or name another file")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be written to: {error.strerror}") from None


def write(path: Path, report: Report, about: str, *, top: int) -> None:
    """Write the page atomically; `about` describes the jobs."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(html(report, about, top=top), encoding="utf-8")
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def html(report: Report, about: str, *, top: int) -> str:
    """Render the page; tables have `top` rows, and at most fifty."""
    rows = min(top, _MOST_ROWS)
    return _PAGE.format(
        title="How the jobs went",
        about=name(about, _MOST_CHARACTERS),
        style=_STYLE,
        facts="".join(_facts(report)),
        weeks=_section(weeks(report, top=rows), _about_weeks(report)),
        plots="".join(_plot(plot) for plot in plots(report)),
        errors=_section(errors(report), "" if report.total.died else "No dead jobs."),
        tables="".join(_section(table) for table in tables(report, top=rows, periods=0)),
    )


def _about_weeks(report: Report) -> str:
    if not report.covers_weeks:
        return "Not compared: the report does not cover the last 14 days."
    about = "The last seven days, and the change since the seven days before."
    return about if report.weeks and report.weeks[0].last.ended else f"{about} No jobs last week."


def _facts(report: Report) -> list[str]:
    total = report.total
    waiting, processing = total.done.waiting, total.done.processing
    return [
        _fact(count(total.done.finished), "completed"),
        _fact(count(total.died), "dead", bad=bool(total.died)),
        _fact(share(total.done.retried_share), "retried"),
        _fact(seconds(waiting.p50 if waiting else None), "waiting p50"),
        _fact(seconds(waiting.p99 if waiting else None), "waiting p99"),
        _fact(seconds(processing.p50 if processing else None), "processing p50"),
        _fact(seconds(processing.p99 if processing else None), "processing p99"),
        _fact(count(total.staged), "staged now"),
        _fact(count(total.inflight), "in flight now"),
    ]


def _fact(number: str, about: str, *, bad: bool = False) -> str:
    return (
        f'<div class="fact{" bad" if bad else ""}"><b>{escape(number)}</b><span>{escape(about)}</span></div>'
    )


def _plot(plot: Plot) -> str:
    if plot.is_empty:
        return f'<section><h2>{plot.title}</h2><p class="about">{plot.nothing}</p></section>'
    rows = [
        [label, *map(plot.words, values)]
        for label, *values in zip(plot.labels, *(one.values for one in plot.series), strict=True)
        if any(value is not None for value in values)
    ]
    table = Table(plot.title, ["from (UTC)", *(one.name for one in plot.series)], rows, texts=1)
    return (
        f'<section><h2>{plot.title}</h2><p class="about">{plot.about}</p>{draw(plot)}'
        f"<details><summary>Numbers</summary>{_table(table)}</details></section>"
    )


def _section(table: Table, about: str = "") -> str:
    line = f'<p class="about">{about}</p>' if about else ""
    return f"<section><h2>{escape(table.title)}</h2>{line}{_table(table) if table.rows else ''}</section>"


def _table(table: Table) -> str:
    head = _row(table.columns, table.texts, scope="col")
    body = "".join(_row(row, table.texts, scope="row") for row in table.rows)
    # The keyboard scrolls tables wider than a phone.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}: table">'
        f"<table><thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _row(cells: Sequence[str], texts: int, *, scope: str) -> str:
    written = ""
    for index, cell in enumerate(cells):
        kind = " class=text" if index < texts else ""
        if index == 0 or scope == "col":
            written += f"<th scope={scope}{kind}>{name(cell)}</th>"
        else:
            written += f"<td{kind}>{name(cell)}</td>"
    return f"<tr>{written}</tr>"
