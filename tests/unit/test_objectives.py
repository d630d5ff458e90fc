"""Service level objectives, as jobs and the file of rules declare them."""

import re
from typing import Any

import pytest

from drain.admission import declared
from drain.admission.rules import Rules
from drain.errors import ConfigError
from drain.jobs.objectives import TARGETS, Objective
from drain.workers import job


@pytest.mark.parametrize(
    ("text", "percent", "seconds"),
    [
        ("99% start within 5s", 99, 5),
        ("99.95 %  start within 2m", 99.95, 120),
        ("50% start within 250ms", 50, 0.25),
        ("99.999% start within 0.5s", 99.999, 0.5),
        ("95% start within 1h", 95, 3600),
    ],
)
def test_an_objective_is_parsed(text: str, percent: float, seconds: float) -> None:
    assert Objective.parse(text) == Objective(percent, seconds)


@pytest.mark.parametrize("seconds", TARGETS)
def test_an_objective_survives_a_round_trip_through_text(seconds: float) -> None:
    objective = Objective(99.9, seconds)
    assert Objective.parse(str(objective)) == objective


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fast", "written as '99% start within 5s', not as 'fast'"),
        ("", "written as"),
        (5, "not as 5"),
        ("99% finish within 5s", "written as '99% start within 5s'"),
        ("99% start within 5", "a length of time is written as 90s"),
        ("99% start within 5s or so", "a length of time is written as 90s"),
        ("100% start within 5s", "100% leaves no budget"),
        ("999% start within 5s", "between 50% and 99.999%; not 999%"),
        ("49.9% start within 5s", "between 50% and 99.999%"),
        (
            "99% start within 4s",
            "within 4s cannot be measured; the nearest that can is 3s (there are 10ms, 25ms",
        ),
        ("99% start within 7d", "the nearest that can is 1d"),
        ("٩٩% start within 5s", "written as"),
        ("99% start within 5s\x1b[31m", "a length of time"),
    ],
)
def test_an_invalid_objective_is_explained_on_one_line(text: object, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        Objective.parse(text)
    assert str(caught.value).isprintable()


def test_the_budget_has_no_floating_point_error() -> None:
    assert Objective(99, 5).budget == 0.01
    assert Objective(99.9, 5).budget == 0.001
    assert Objective(99.999, 5).budget == 0.00001


def test_a_job_with_an_invalid_objective_is_not_registered() -> None:
    with pytest.raises(ValueError, match="written as"):
        job(name="tests.slo", slo="soon")(lambda: None)


def test_a_queues_objective_is_declared_with_its_rules_but_is_not_a_rule() -> None:
    calls = '[calls]\nrunning = 5\nslo = "99% start within 5s"'
    text = f'{calls}\n[mail]\nslo = "90% start within 1m"\n[other]\nfair = true'
    assert declared.objectives(text) == ({"calls": Objective(99, 5), "mail": Objective(90, 60)}, {})
    wanted = declared.read(text)
    assert wanted == {
        "calls": Rules("calls", running=5),
        "mail": Rules("mail"),
        "other": Rules("other", fair=True),
    }
    assert [each.queue for each in declared.differences({}, wanted, prune=False)] == ["calls", "other"]


@pytest.mark.parametrize("read", [declared.read, declared.objectives])
@pytest.mark.parametrize("text", ['[calls]\nslo = "soon"', "[calls]\nslo = 5", "[calls]\nslo = true"])
def test_an_invalid_objective_makes_the_file_invalid(read: object, text: str) -> None:
    with pytest.raises(ConfigError, match="queue calls: slo: an SLO is written as"):
        read(text)  # type: ignore[operator]


IMPORT = Objective(99, 600, "finish")


def test_a_flows_objective_is_declared_in_a_table_of_its_own() -> None:
    text = """
        [flow.nightly-import]
        slo = "99% finish within 10m"
        [flow."year 2026.1"]
        slo = "99% finish within 10m"
        [flow.empty]
        [mail]
        fair = true
        """
    assert declared.objectives(text) == ({}, {"nightly-import": IMPORT, "year 2026.1": IMPORT})
    assert declared.read(text) == {"mail": Rules("mail", fair=True)}
    assert str(IMPORT) == "99% finish within 10m"
    assert Objective.parse(str(IMPORT), "finish") == IMPORT


def test_a_queue_may_be_named_flow() -> None:
    text = '[flow]\nslo = "90% start within 1m"\nrunning = 5\nfair = true\nweights = { acme = 3 }'
    flows = '\n[flow.import]\nslo = "99% finish within 10m"'
    rules = {"flow": Rules("flow", running=5, fair=True, weights={"acme": 3})}
    assert declared.read(text) == declared.read(text + flows) == rules
    assert declared.objectives(text + flows) == ({"flow": Objective(90, 60)}, {"import": IMPORT})


@pytest.mark.parametrize("read", [declared.read, declared.objectives])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[flow.a]\nslo = 'soon'",
            "flow a: slo: an SLO is written as '99% finish within 10m', not as 'soon'",
        ),
        (
            "[flow.a]\nslo = '99% start within 5s'",
            "flow a: slo: an SLO is written as '99% finish within 10m'",
        ),
        (
            "[flow.a]\nslo = '99% finish within 5'",
            "an SLO is written as '99% finish within 10m': a length of",
        ),
        ("[flow.a]\nslo = '99% finish within 7d'", "flow a: slo: within 7d cannot be measured"),
        ("[flow.a]\nslo = 5", "flow a: slo: an SLO is written as"),
        ("[flow.a]\nrunning = 5", "flow a: unknown setting 'running'; a flow has only slo"),
        (
            "[flow.a.b]\nslo = 'x'",
            "flow a: unknown setting 'b'; a flow has only slo; quote a name with a dot",
        ),
        ('[flow.""]', "flow '': the name must be a string of 1 to 255 characters, not an empty one"),
        (f"[flow.{'a' * 256}]", "the name must be a string of 1 to 255 characters, not 256 characters"),
        ('[flow."a\\u0000"]', "flow 'a\\x00': the name contains a NUL"),
        (f"[mail]\nrunning = {'9' * 5000}", "it is not valid TOML: "),
        ('[flow."a\\u001b"]\nrunning = 5', "flow a\\x1b: unknown setting"),
        ("flow = 5", "'flow' is not in a table"),
    ],
)
def test_an_invalid_flow_makes_the_file_invalid(read: Any, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        read(text)
    assert str(caught.value).isprintable()


def test_a_misspelt_rule_is_also_an_error_when_reading_objectives() -> None:
    with pytest.raises(ConfigError, match="unknown rule 'runing'"):
        declared.objectives("[calls]\nruning = 5")
