"""What docs/concepts, docs/reference and docs/design say is so in the code today."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import get_overloads

import click
import pytest
from prometheus_client import Counter, Gauge, Histogram

import drain
from drain import metrics
from drain.__main__ import main
from drain.config import VARIABLES, Settings
from drain.contrib.scaling import leader as scaling
from drain.enqueuer import objectives
from drain.jobs.registry import job
from tests.golden import PRINTED
from tests.unit.test_printed import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Cells of each row of each table, the headings and their lines left out."""
    tables = re.findall(r"^\|.*\n\|[-| ]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for each in tables
        for line in each.splitlines()
    ]


def code(cell: str) -> str:
    """The first word in the font of code."""
    return next(iter(re.findall(r"`([^`]+)`", cell)), "")


def module(*names: str) -> object:
    """The first of these modules that is there."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
    raise AssertionError(names)


def failure_points() -> list[str]:
    found = module("drain.failpoints", "drain.failpoints")
    (points,) = [
        kind
        for kind in vars(found).values()
        if isinstance(kind, type) and issubclass(kind, Enum) and kind.__module__ == found.__name__  # type: ignore[attr-defined]
    ]
    return list(points.__members__)


def test_the_failure_points_table_lists_each_in_the_order_jobs_pass_them() -> None:
    assert [code(first) for first, *_ in rows(page("design/failure-points.md"))] == failure_points()


def test_the_diagram_of_a_batch_names_only_failure_points_that_exist() -> None:
    named = re.findall(r">([A-Z]+(?:_[A-Z]+)*)</text>", page("images/diagrams/batch.svg"))
    assert {"MATURED", "COMMITTED", "PUSHED_A_SLICE"} <= set(named)
    assert set(named) - {"A", "B", "C", "COMMIT"} <= set(failure_points())


def events() -> set[str]:
    """Each value of `event` in the source."""
    found: set[str] = set()
    for room in ("drain", "workers", "pipeline"):
        for path in (ROOT / room).rglob("*.py"):
            for name in re.findall(
                r'(?:"event": f?|_extra\(|_event = )"([^"]+)"', path.read_text(encoding="utf-8")
            ):
                words = ("refused", "dropped") if name == "untracked_{word}" else ("",)
                found |= {name.replace("{word}", word) for word in words}
    return found


def test_the_log_event_reference_lists_every_logged_event() -> None:
    listed = [code(first) for first, *_ in rows(page("reference/log-events.md"))]
    assert len(listed) == len(set(listed))
    assert set(listed) == events()


def test_every_log_line_has_an_event() -> None:
    """Lines of RQ's loggers aside, which are RQ's."""
    without = []
    for path in [*(ROOT / "drain").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_line = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"debug", "info", "warning", "error", "exception"}
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in {"log", "_log"}
            )
            if is_line and "extra" not in {keyword.arg for keyword in node.keywords}:  # type: ignore[attr-defined]
                without.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert without == []


def all_metrics() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, type and labels of each metric of the enqueuer."""
    for metric in [*vars(metrics).values(), *vars(scaling).values(), *vars(objectives).values()]:
        if isinstance(metric, Counter | Gauge | Histogram):
            yield next(iter(metric.describe())).name, type(metric).__name__.lower(), metric._labelnames


def test_the_metrics_reference_lists_each_metric_with_type_and_labels() -> None:
    _, of_leader, of_others = re.split(
        r"^## `drain run`$|^## `drain work", page("reference/metrics.md"), flags=re.M
    )
    listed = {
        code(name): (kind, tuple(re.findall("`([^`]+)`", labels)))
        for name, kind, labels, _ in rows(of_leader)
    }
    assert listed == {name: (kind, labels) for name, kind, labels in all_metrics()}
    # Their labels are compared with those of a real port: tests/process/test_work_metrics.py.
    others = {pair[0] for pair in vars(metrics).values() if isinstance(pair, tuple) and len(pair) == 2}
    assert {code(cells[0]) for cells in rows(of_others)} == others


def test_no_metric_has_a_label_reserved_by_prometheus() -> None:
    labels = {
        label
        for _, _, cell, _ in rows(page("reference/metrics.md"))
        for label in re.findall("`([^`]+)`", cell)
    }
    assert "job_name" in labels
    assert not labels & {"job", "instance"}


def variables() -> dict[str, set[str]]:
    """Each variable of the environment, with the options that stand for it."""
    found: dict[str, set[str]] = {variable: set() for variable in VARIABLES.values()}

    def look(command: click.Command) -> None:
        for each in command.params:
            names = [each.envvar] if isinstance(each.envvar, str) else each.envvar or []
            for name in names:
                options = {option for option in each.opts if option.startswith("--")}
                found.setdefault(name, set()).update(options)
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                look(inner)

    look(main)
    return {name: options for name, options in found.items() if name.startswith("DRAIN_")}


def test_the_settings_reference_lists_each_variable_with_its_option() -> None:
    listed = {code(cells[0]): cells for cells in rows(page("reference/settings.md"))}
    found = variables()
    assert {name for name in listed if name.startswith("DRAIN_")} == {
        *found,
        "DRAIN_TEST_POSTGRES",
        "DRAIN_TEST_REDIS",
        # No option: others would see it on the command line.
        "DRAIN_WEB_TOKEN",
        "DRAIN_SOURCE_DATABASE_URL",
    }
    for name, options in found.items():
        given = options or {"--" + name.removeprefix("DRAIN_").lower().replace("_", "-")}
        assert any(option in listed[name][1] for option in given), name


def test_the_settings_reference_lists_the_defaults() -> None:
    listed = {code(cells[0]): cells[2] for cells in rows(page("reference/settings.md")) if len(cells) == 4}
    defaults = {each.name: each.default for each in fields(Settings)}
    assert float(listed["DRAIN_BATCH_SIZE"]) == defaults["batch_size"]
    assert float(listed["DRAIN_POLL_SECONDS"]) == defaults["poll_seconds"]


def test_the_settings_reference_lists_each_job_option_with_its_default() -> None:
    table = page("reference/settings.md").split("## Options of `@job`")[1].split("\n## ")[0]
    listed = {code(name): default for name, default, _ in rows(table)}
    kinds = module("drain.jobs.options", "drain.job")
    options = {each.name: each.default for each in fields(kinds.JobOptions)}  # type: ignore[attr-defined]
    assert listed.keys() == {"name", *options}
    for name, default in options.items():
        if default is not None:
            assert listed[name].strip("`") == str(default), name


def test_the_api_reference_lists_each_public_name() -> None:
    named = re.findall(r"^::: drain\.(\w+)$", page("reference/api.md"), re.MULTILINE)
    assert sorted(named) == sorted(drain.__all__)


CREATED = r"CREATE (?:OR REPLACE )?(?:TABLE|INDEX|SEQUENCE|FUNCTION) (?:IF NOT EXISTS )?(\w+)"


@pytest.mark.parametrize("pattern", [CREATED, r"CONSTRAINT (\w+)"])
def test_the_schema_reference_names_every_object(pattern: str) -> None:
    found = set(re.findall(pattern, SCHEMA))
    assert len(found) > 10
    assert found <= set(re.findall(r"`(\w+)`", page("reference/schema.md")))


def test_the_schema_reference_names_every_column() -> None:
    tables = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\)", SCHEMA, re.DOTALL)
    found = {
        (table, column)
        for table, text in tables
        for column in re.findall(r"^    ([a-z_]+) +(?:\w+) *", text, re.MULTILINE)
    }
    assert len(found) > 90
    named = set(re.findall(r"`(\w+)`", page("reference/schema.md")))
    assert {each for each in found if each[1] not in named} == set()


def test_the_glossary_has_each_word_once_in_alphabetical_order() -> None:
    words = [first for first, *_ in rows(page("concepts/glossary.md"))]
    assert len(words) > 50
    assert words == sorted(set(words), key=str.casefold)


@pytest.mark.skipif(not (ROOT / "drain" / "tables").is_dir(), reason="drain/tables is not there yet")
def test_each_repository_path_named_on_a_page_exists() -> None:
    pattern = r"`((?:drain|workers|pipeline|tests|migrations|examples)/[\w/]*(?:\.\w+)?)`"
    named = {
        (name, path.name)
        for path in [*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"]
        for name in re.findall(pattern, path.read_text(encoding="utf-8"))
    }
    assert sorted(each for each in named if not (ROOT / each[0]).exists()) == []


def test_the_command_line_reference_matches_each_commands_help() -> None:
    """The texts of tests/printed, without the options of every command; DRAIN_WRITE_PRINTED=1 writes the page."""
    path = DOCS / "reference" / "cli.md"
    introduction = path.read_text(encoding="utf-8").partition("\n## ")[0]
    sections = []
    for words in commands():
        text = (PRINTED / f"{'-'.join(['help', *words.split()])}-80.txt").read_text(encoding="utf-8")
        shared = "--database-url|--schema|-h, --help" + (
            "" if words == "backfill" else "|--master|--conf|--nice"
        )
        text = re.sub(rf"^  (?:{shared}) .*\n(?:   .*\n)*", "", text, flags=re.MULTILINE)
        text = re.sub(r"\nOptions:\n(?=\n|$)", "", text)
        heading = f"drain {words}".strip()
        sections.append(f"\n## `{heading}`\n\n```text\n{text}```\n")
    expected = introduction + "".join(sections)
    if os.environ.get("DRAIN_WRITE_PRINTED"):
        path.write_text(expected, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == expected


def test_each_figure_in_the_benchmark_tables_comes_from_the_results() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    figures = {
        figure
        for _, *cells in rows(page("benchmarks.md"))
        for cell in cells
        for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", cell)
    }
    assert len(figures) > 30
    assert {
        figure for figure in figures if not re.search(rf"(?<![\d,.]){figure}(?![\d,.]\d)", results)
    } == set()


def test_the_page_on_plain_jobs_names_the_tracked_alternatives() -> None:
    """Options of `@job` and names of `drain`: each is there, so its row may not say that there is nothing."""
    text = page("howto/plain-rq-jobs.md").partition("## Feature by feature")[2].partition("\n## ")[0]
    cells = {first: rest[-1] for first, *rest in rows(text)}
    options = {name for kind in get_overloads(job) for name in inspect.signature(kind).parameters}
    for feature, names in {
        "callbacks": ["on_finish", "on_dead"],
        "`Repeat`": ["cron", "schedule"],
        "results": ["result"],
        "`unique=True`": ["unique_key"],
        "`meta`": ["progress"],
    }.items():
        (cell,) = [cell for first, cell in cells.items() if first.startswith(feature)]
        for name in names:
            assert name in options or name in drain.__all__
            assert re.search(rf"`(?:drain\.{name}|@job\({name}=[^`]*|{name})\W", cell), (feature, name)
    assert [feature for feature, cell in cells.items() if re.match("none", cell)] == []
