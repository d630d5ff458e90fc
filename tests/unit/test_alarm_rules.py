"""The alarms of deploy/prometheus: each has its runbook page, its two cases, and metrics that there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from benchmarks import prometheus
from drain import metrics
from tests import pages
from tests.helpers import ROOT

ALERTS = {rule["alert"]: rule for rule in prometheus.alerts()}
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
CASES = sorted((prometheus.DEPLOY / "tests").glob("*.yml"))
SEVERITIES = {"critical", "warning", "info"}
# Of Prometheus itself.
OTHERS = {"up"}
# What else stands in an expression: functions, operators and the names of labels.
METRIC = re.compile(r"\b(up|drain_\w+)\b(?!\()")
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


def expressions(dashboard: Path) -> list[str]:
    """Each query of each panel."""
    panels = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def exposed() -> set[str]:
    """Names of all series of both programs."""
    names = set()
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            names.add(next(iter(metric.describe())).name)
        elif isinstance(metric, tuple) and len(metric) == 2 and isinstance(metric[0], str):
            names.add(metric[0])
    return names


def unknown(expression: str) -> set[str]:
    """Metrics in an expression that no program exposes."""
    named = set(METRIC.findall(re.sub(r'"[^"]*"', "", expression)))
    known = exposed() | OTHERS
    return {name for name in named if name not in known and SUFFIX.sub("", name) not in known}


def tried(cases: Path) -> list[tuple[str, str, bool]]:
    """Each case of a file: its name, the alarm that it tries, and whether that one ever fires in it."""
    tests: list[Any] = yaml.safe_load(cases.read_text(encoding="utf-8"))["tests"]
    found = []
    for test in tests:
        (alert,) = {each["alertname"] for each in test["alert_rule_test"]}
        found.append((test["name"], alert, any(each["exp_alerts"] for each in test["alert_rule_test"])))
    return found


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alarm_states_its_meaning_severity_and_delay(alert: str) -> None:
    rule = ALERTS[alert]
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url", "fires_within"}
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in SEVERITIES
    # A line of a phone's notification, with a name or a number for each of its labels.
    assert len(re.sub(r"\{\{.*?\}\}", "default", notes["summary"])) <= 80
    assert notes["description"].endswith(".")
    assert prometheus.seconds(notes["fires_within"]) > prometheus.seconds(rule.get("for", "0s"))


@pytest.mark.parametrize("alert", ALERTS)
def test_the_runbook_of_an_alarm_is_a_section_of_a_page(alert: str) -> None:
    path, _, anchor = ALERTS[alert]["annotations"]["runbook_url"].partition("#")
    assert anchor == alert.lower()
    assert anchor in pages.anchors(ROOT / path)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_metric_of_an_alarm_is_exposed(alert: str) -> None:
    assert unknown(ALERTS[alert]["expr"]) == set()


def test_a_metric_that_is_not_exposed_is_noticed() -> None:
    assert unknown('sum(rate(drain_pushed_jobs_total{queue="drain_x"}[5m])) > drain_absent') == {
        "drain_absent"
    }


def test_each_alarm_has_a_firing_case_and_a_quiet_case() -> None:
    cases = [case for path in CASES for case in tried(path)]
    assert {(alert, fires) for _, alert, fires in cases} == {
        (alert, fires) for alert in ALERTS for fires in (True, False)
    }
    # The names say it too, and promtool prints them.
    assert [
        name
        for name, alert, fires in cases
        if not name.startswith(f"{alert} {'fires' if fires else 'is quiet'}")
    ] == []


def test_each_runbook_section_belongs_to_an_alarm() -> None:
    sections = {
        heading
        for page in (ROOT / "docs" / "operations" / "runbooks").glob("*.md")
        for heading in re.findall(r"^## (Drain\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert sections == set(ALERTS)


def test_scaling_changes_durations_but_not_names() -> None:
    text = 'rate(x_5m[5m] offset 10m) and drain_wait_seconds > 600 or a{b="1m"}\nfor: 1d\n'
    faster = prometheus.scaled(text, 60)
    assert "rate(x_5m[5000ms] offset 10000ms) and drain_wait_seconds > 10 " in faster
    assert faster.endswith("for: 1440000ms\n")
    assert prometheus.scaled(text, 1) == text


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_metric_of_a_dashboard_is_exposed(dashboard: Path) -> None:
    found = expressions(dashboard)
    assert len(found) > 10
    assert set().union(*map(unknown, found)) == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_provisioned_anywhere(dashboard: Path) -> None:
    """Its address is fixed, its Prometheus is chosen, its panels say what they show and do not overlap."""
    board = json.loads(dashboard.read_text(encoding="utf-8"))
    assert board["uid"] == f"job-drain-{dashboard.stem}"
    assert "id" not in board
    assert (
        board["templating"]["list"][0] | {"type": "datasource", "query": "prometheus"}
        == (board["templating"]["list"][0])
    )
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert panel["targets"]
            assert all(each["datasource"] == chosen for each in [panel, *panel["targets"]])
