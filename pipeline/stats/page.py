"""Statistics as one self-contained page of HTML."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from drain.errors import ConfigError
from pipeline.stats.plots import Plot, plots
from pipeline.stats.report import Report
from pipeline.stats.tables import Table, tables
from pipeline.stats.words import count, seconds, share

_CONFIG = {"displayModeBar": False, "responsive": True}
_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1.5rem 2rem 3rem; max-width: 1500px; background: #f6f7f9; color: #1f2430;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 0; }
p.about, header p { color: #667085; margin: .1rem 0 .5rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.4rem, 1fr)); gap: .8rem; margin: 1rem 0; }
.fact { background: #fff; border: 1px solid #e4e7ec; border-radius: 8px; padding: .6rem .9rem; }
.fact b { display: block; font-size: 1.4rem; font-weight: 600; white-space: nowrap; }
.fact span { color: #667085; font-size: .8rem; }
.fact.bad b { color: #b42318; }
.plots { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; }
@media (min-width: 1000px) {
  .plots { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
  .plots section:first-child { grid-column: 1 / -1; }
}
section { background: #fff; border: 1px solid #e4e7ec; border-radius: 8px; padding: .9rem 1.1rem; min-width: 0; }
.tables section { margin-top: 1rem; overflow-x: auto; }
.tables section > div { max-height: 56rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; margin-top: .4rem; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: #fff; color: #667085; font-weight: 500; }
th, td { text-align: right; padding: .28rem .7rem; border-bottom: 1px solid #eef0f3; white-space: nowrap; }
th.text, td.text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; }
tbody tr:hover { background: #f4f7fb; }
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
<header><h1>{title}</h1><p>{about}</p></header>
<div class="facts">{facts}</div>
<div class="plots">{plots}</div>
<div class="tables">{tables}</div>
</body>
</html>
"""


def check(path: Path) -> None:
    """Check that a page can be written at this path, before hours are spent on its contents.

    Raises:
        ConfigError: The directory is missing or cannot be written to, or the path is a directory.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {path.parent}; make it, or name another file")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be written to: {error.strerror}") from None


def write(path: Path, report: Report, about: str, *, top: int) -> None:
    """Write the page in one step: a reader sees either the old page or the new one.

    Args:
        path: Path of the file.
        report: Report to show.
        about: Line that describes which jobs the report covers.
        top: Upper bound of the jobs that a table shows.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(html(report, about, top=top), encoding="utf-8")
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def html(report: Report, about: str, *, top: int) -> str:
    """Render the page."""
    drawn = [_plot(plot, first=index == 0) for index, plot in enumerate(plots(report))]
    return _PAGE.format(
        title="How the jobs went",
        about=escape(about),
        style=_STYLE,
        facts="".join(_facts(report)),
        plots="".join(drawn),
        tables="".join(_table(table) for table in tables(report, top=top)),
    )


def _facts(report: Report) -> list[str]:
    total = report.total
    waiting, processing = total.done.waiting, total.done.processing
    return [
        _fact(count(total.done.finished), "finished"),
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


def _plot(plot: Plot, *, first: bool) -> str:
    drawn = plot.figure.to_html(full_html=False, include_plotlyjs=first, config=_CONFIG)
    return f'<section><h2>{escape(plot.title)}</h2><p class="about">{escape(plot.about)}</p>{drawn}</section>'


def _table(table: Table) -> str:
    head = _row("th", table.columns, table.texts)
    body = "".join(_row("td", row, table.texts) for row in table.rows)
    return (
        f"<section><h2>{escape(table.title)}</h2><div><table><thead>{head}</thead><tbody>{body}</tbody></table></div>"
        "</section>"
    )


def _row(tag: str, cells: Sequence[str], texts: int) -> str:
    written = (
        f"<{tag}{' class=text' if index < texts else ''}>{escape(cell)}</{tag}>"
        for index, cell in enumerate(cells)
    )
    return f"<tr>{''.join(written)}</tr>"
