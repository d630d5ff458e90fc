"""`drain slo rules`: burn rates and alerts for Prometheus, checked and evaluated by Prometheus' own promtool."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.admission.declared import Objectives
from drain.contrib.slo import prometheus, prometheus as yaml
from drain.contrib.slo.declared import Slo, declared
from drain.jobs import registry
from drain.jobs.objectives import TARGETS, Objective
from drain.workers import job

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on PATH")
CALLS = Slo("queue", "calls", Objective(99, 5), "calls")
SEND = Slo("job", "shop.jobs.send", Objective(99.9, 30), "mail")
IMPORT = Slo("flow", "nightly import", Objective(99, 600, "finish"), None)
HOSTILE = Slo("job", "a\"b'c\\d{{ $value }}\n#: x", Objective(90, 1), "mail")


def promtool(*args: str, cwd: Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FLOW_ALERTS = ("DrainSLOBurnsFast", "DrainSLOBurnsSlowly", "DrainSLONothingFinishes")


def series(name: str, labels: str, values: str) -> dict[str, str]:
    return {"series": f"{name}{{{labels}}}", "values": values}


def starts(
    all_jobs: str, in_time: str, *, labels: str = 'queue="calls",job="drain-work"', le: str = "5.0"
) -> list[Any]:
    """Counters of first starts, minute by minute."""
    return [
        series("drain_work_wait_seconds_count", labels, all_jobs),
        series("drain_work_wait_seconds_bucket", f'{labels},le="{le}"', in_time),
    ]


def firing(tmp_path: Path, slo: Slo, given: Sequence[Any], at: str, alerts: Sequence[str]) -> None:
    """Let Prometheus evaluate an objective's rules on these series: these alerts fire at that time, and no other."""
    (tmp_path / "slo.yml").write_text(prometheus.rules([slo]), encoding="utf-8")
    names = ("DrainSLOBurnsFast", "DrainSLOBurnsSlowly", "DrainSLONothingStarts", "DrainSLONothingFinishes")
    severity = {"DrainSLOBurnsSlowly": "warning"}
    expected = [
        {
            "expr": f"sum by (alertname, severity, kind, slo) (ALERTS{{alertname='{name}',alertstate='firing'}})",
            "eval_time": at,
            "exp_samples": [
                {
                    "labels": f'{{alertname="{name}",severity="{severity.get(name, "critical")}",'
                    f"kind={json.dumps(slo.kind)},slo={json.dumps(slo.name)}}}",
                    "value": 1,
                }
            ]
            if name in alerts
            else [],
        }
        for name in names
    ]
    test = {"interval": "1m", "input_series": list(given), "promql_expr_test": expected}
    tests: Any = {"rule_files": ["slo.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(tests), encoding="utf-8")
    promtool("test", "rules", "test.yml", cwd=tmp_path)


@needs_promtool
def test_promtool_accepts_the_rules_whatever_the_names(tmp_path: Path) -> None:
    (tmp_path / "slo.yml").write_text(
        prometheus.rules([CALLS, SEND, IMPORT, HOSTILE, HOSTILE._replace(kind="flow")]), encoding="utf-8"
    )
    assert "SUCCESS" in promtool("check", "rules", "slo.yml", cwd=tmp_path)


@needs_promtool
def test_a_queue_with_half_its_jobs_late_pages_within_an_hour(tmp_path: Path) -> None:
    # 60 jobs a minute; of the last half hour half are late.
    given = starts("0+60x60", "0+60x30 1830+30x30")
    firing(tmp_path, CALLS, given, "60m", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])


@needs_promtool
def test_a_queue_whose_jobs_all_start_on_time_is_quiet(tmp_path: Path) -> None:
    firing(tmp_path, CALLS, starts("0+60x420", "0+60x420"), "7h", [])


@needs_promtool
def test_a_queue_that_spends_exactly_its_error_budget_is_quiet(tmp_path: Path) -> None:
    firing(tmp_path, CALLS, starts("0+100x420", "0+99x420"), "7h", [])


@needs_promtool
def test_a_slow_burn_opens_a_ticket_but_does_not_page(tmp_path: Path) -> None:
    firing(tmp_path, CALLS, starts("0+100x420", "0+92x420"), "7h", ["DrainSLOBurnsSlowly"])


@needs_promtool
def test_an_alert_ends_soon_after_the_cause(tmp_path: Path) -> None:
    given = starts("0+60x120", "0+60x60 3630+30x20 4260+60x40")
    firing(tmp_path, CALLS, given, "80m", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])
    firing(tmp_path, CALLS, given, "87m", ["DrainSLOBurnsSlowly"])


@needs_promtool
def test_one_late_job_on_a_quiet_night_does_not_page(tmp_path: Path) -> None:
    firing(tmp_path, CALLS, starts("0x57 1x3", "0x60"), "60m", [])


@needs_promtool
def test_a_low_objective_can_be_missed_too(tmp_path: Path) -> None:
    low = Slo("queue", "calls", Objective(50, 5), "calls")
    firing(tmp_path, low, starts("0+60x420", "0+3x420"), "7h", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])
    firing(tmp_path, low, starts("0+60x420", "0+20x420"), "7h", [])


@needs_promtool
def test_an_objective_for_one_name_ignores_other_jobs(tmp_path: Path) -> None:
    labels = 'queue="mail",job_name="shop.jobs.send",job="drain-work"'
    given = [
        *starts("0+60x60", "0+30x60", labels=labels, le="30.0"),
        *starts("0+60x60", "0+60x60", le="30.0"),
    ]
    firing(tmp_path, SEND, given, "60m", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])
    others = starts(
        "0+60x60", "0+30x60", labels='queue="mail",job_name="another",job="shop.jobs.send"', le="30.0"
    )
    firing(tmp_path, SEND, [*others, *starts("0+60x60", "0+60x60", labels=labels, le="30.0")], "60m", [])


@needs_promtool
def test_the_counts_of_several_workers_are_summed(tmp_path: Path) -> None:
    one = starts("0+60x60", "0+60x60", labels='queue="calls",instance="a"')
    other = starts("0+60x60", "0+30x60", labels='queue="calls",instance="b"')
    firing(tmp_path, CALLS, [*one, *other], "60m", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])


@needs_promtool
def test_jobs_that_never_start_raise_an_alert(tmp_path: Path) -> None:
    waits = series("drain_wait_seconds", 'queue="calls"', "0x10 60+60x30")
    firing(tmp_path, CALLS, [waits], "20m", ["DrainSLONothingStarts"])
    firing(tmp_path, CALLS, [series("drain_wait_seconds", 'queue="calls"', "1x30")], "20m", [])
    firing(tmp_path, CALLS, [waits, *starts("0+60x30", "0+60x30")], "20m", [])
    paused = series("drain_waiting_jobs", 'queue="calls",cause="paused"', "5x30")
    firing(tmp_path, CALLS, [waits, paused], "20m", [])


def ends(in_time: str, late: str, finished: str, *, flow: str = "nightly import") -> list[Any]:
    """Counters of flows, minute by minute: in time, late, and all that finished."""
    labels = f'flow="{flow}",job="drain-run"'
    return [
        series("drain_flow_seconds_bucket", f'{labels},le="600.0"', in_time),
        series("drain_late_flows_total", labels, late),
        series("drain_flow_seconds_count", labels, finished),
    ]


@needs_promtool
def test_half_the_flows_late_page_even_if_they_never_finish(tmp_path: Path) -> None:
    given = ends("0+60x30 1830+30x30", "0x30 30+30x29", "0+60x30 1830+30x30")
    firing(tmp_path, IMPORT, given, "60m", ["DrainSLOBurnsFast", "DrainSLOBurnsSlowly"])
    firing(tmp_path, IMPORT, ends("0x60", "0+10x60", "0x60"), "60m", [*FLOW_ALERTS])


@needs_promtool
def test_flows_that_spend_exactly_their_error_budget_are_quiet(tmp_path: Path) -> None:
    firing(tmp_path, IMPORT, ends("0+99x420", "0+1x420", "0+100x420"), "7h", [])
    firing(tmp_path, IMPORT, ends("0x420", "0x420", "0x420"), "7h", [])
    firing(tmp_path, IMPORT, ends("0x60", "0+10x60", "0x60", flow="another"), "60m", [])


@needs_promtool
def test_one_late_flow_raises_an_alert_unless_another_has_finished(tmp_path: Path) -> None:
    firing(tmp_path, IMPORT, ends("5x90", "0x40 1x50", "5x90"), "60m", ["DrainSLONothingFinishes"])
    firing(tmp_path, IMPORT, ends("5x90", "0x40 1x50", "5x50 6x40"), "60m", [])
    firing(tmp_path, IMPORT, ends("5x90", "0x90", "5x90"), "60m", [])


def test_each_allowed_threshold_matches_a_histogram_bucket() -> None:
    from prometheus_client.utils import floatToGoString

    assert all(isinstance(seconds, float) for seconds in TARGETS)
    assert [floatToGoString(seconds) for seconds in TARGETS] == [repr(seconds) for seconds in TARGETS]  # type: ignore[no-untyped-call]


def test_objectives_come_from_jobs_and_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    job(name="b", queue="mail", slo="99.9% start within 30s")(lambda: None)
    job(name="a")(lambda: None)

    of_file = Objectives({"calls": Objective(99, 5)}, {IMPORT.name: IMPORT.objective})
    assert declared(of_file) == [CALLS, IMPORT, Slo("job", "b", Objective(99.9, 30), "mail")]


def run(*args: str) -> Any:
    return CliRunner().invoke(main, ["slo", "rules", *args], env={"DRAIN_JOBS": "", "DRAIN_QUEUE_FILE": ""})


def test_the_command_writes_the_rules_to_standard_output_or_to_a_file(tmp_path: Path) -> None:
    file, output = tmp_path / "queues.toml", tmp_path / "slo.yml"
    text = """[calls]
        running = 5
        slo = "99% start within 5s"
        [flow."nightly import"]
        slo = "99% finish within 10m"
        """
    file.write_text(text, encoding="utf-8")
    printed = run("--queue-file", str(file))
    assert (printed.exit_code, printed.stdout) == (0, prometheus.rules([CALLS, IMPORT]))
    written = run("--queue-file", str(file), "--output", str(output))
    assert (written.exit_code, written.stdout) == (0, "")
    assert output.read_text(encoding="utf-8") == printed.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", 'no SLOs; declare one with @job(slo="99% start within 5s")'),
        (b'[calls]\nslo = "soon"', "queue calls: slo: an SLO is written as"),
        (b'[flow.a]\nslo = "soon"', "flow a: slo: an SLO is written as"),
        (b"[calls", "it is not valid TOML"),
        (b"\xff", "not UTF-8 text"),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(tmp_path: Path, text: bytes, problem: str) -> None:
    file = tmp_path / "queues.toml"
    file.write_bytes(text)
    result = run("--queue-file", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_broken_module_or_a_missing_file_is_reported_in_one_line() -> None:
    for args in (["--jobs", "no.such.module"], ["--queue-file", "/no/such/file"]):
        result = run(*args)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_yaml_strings_are_never_read_as_another_type() -> None:
    value: Any = {"a": ["yes", {"b": "1", "c": ["#"]}, 5], "d": {"e": ": \n"}}
    assert yaml.dump(value) == 'a:\n  - "yes"\n  - b: "1"\n    c:\n      - "#"\n  - 5\nd:\n  e: ": \\n"\n'
