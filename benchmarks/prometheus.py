"""A separate Prometheus with the alarms of deploy/prometheus, for tests and for `benchmarks.quiet_alarms`.

It runs the shipped files. `faster` divides all durations in them (scrapes, windows, `for`, `fires_within`) and all
thresholds in seconds, so that minutes pass within seconds. Nothing else is changed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy" / "prometheus"
ALERTS = DEPLOY / "alerts.yml"
CONFIG = DEPLOY / "prometheus.yml"

_PATIENCE_SECONDS = 60.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A duration that is not part of a word or number, and a threshold of a metric in seconds.
_DURATION = re.compile(r"(?<![\w.])(\d+)([smhd])(?!\w)")
_MARK = re.compile(r"(?<=_seconds > )\d+|(?<=_seconds\) > )\d+")


def binary() -> str | None:
    """Find the path of Prometheus; None if it is not installed."""
    return shutil.which("prometheus")


def seconds(duration: str) -> float:
    """Parse a Prometheus duration of one unit."""
    found = _DURATION.fullmatch(duration)
    assert found is not None, duration
    return float(found[1]) * _UNITS[found[2]]


def scaled(text: str, faster: float) -> str:
    """Divide all times in a rules file or a configuration by `faster`."""

    def shorter(found: re.Match[str]) -> str:
        return f"{max(1, round(1000 * seconds(found[0]) / faster))}ms"

    with_marks = _MARK.sub(lambda found: f"{float(found[0]) / faster:g}", text)
    return with_marks if faster == 1 else _DURATION.sub(shorter, with_marks)


def alerts() -> Iterator[dict[str, Any]]:
    """Yield the alarms of the rules file in order."""
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def promise(alert: str, faster: float = 1) -> float:
    """Return the maximum seconds from a fault to its alarm, as promised by the rules file, divided by `faster`."""
    (found,) = (rule for rule in alerts() if rule["alert"] == alert)
    return seconds(found["annotations"]["fires_within"]) / faster


class Prometheus:
    """A running server.

    Args:
        port: Local port.
        process: Server process.
        log: Log file.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._process = process
        self._log = log

    def wait_for_targets(self, number: int) -> None:
        """Wait until this many targets answer, and each alarm has been evaluated without an error.

        Prometheus starts to scrape five seconds after its start.
        """
        deadline = monotonic() + _PATIENCE_SECONDS
        while not self._is_scraping(number):
            if self._process.poll() is not None or monotonic() > deadline:
                raise AssertionError(f"Prometheus does not scrape:\n{self._log.read_text()[-4000:]}")
            sleep(0.05)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now; returns a list of series, each with `metric` and `value`."""
        found: list[dict[str, Any]] = self._ask("/api/v1/query", query=expression)["result"]
        return found

    def query_range(
        self, expression: str, start: float, end: float, step: float = 1.0
    ) -> list[dict[str, Any]]:
        """Evaluate an expression over time; returns a list of series, each with `metric` and `values`."""
        asked = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        found: list[dict[str, Any]] = self._ask("/api/v1/query_range", **asked)["result"]
        return found

    def firing(self) -> set[str]:
        """Names of firing alarms."""
        return {each["labels"]["alertname"] for each in self._alerts() if each["state"] == "firing"}

    def pending(self) -> set[str]:
        """Names of pending alarms."""
        return {each["labels"]["alertname"] for each in self._alerts() if each["state"] == "pending"}

    def has_fired(self, window: str) -> set[str]:
        """Names of the alarms that fired within `window`."""
        found = self.query(f'max by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{window}]))')
        return {each["metric"]["alertname"] for each in found}

    def _is_scraping(self, targets: int) -> bool:
        with suppress(OSError):
            rules = [rule for group in self._ask("/api/v1/rules")["groups"] for rule in group["rules"]]
            up = sum(float(each["value"][1]) for each in self.query("up"))
            return up == targets and all(rule["health"] == "ok" for rule in rules)
        return False

    def _alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("/api/v1/alerts")["alerts"]
        return found

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            # It may still be starting.
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextmanager
def prometheus(
    directory: Path, port: int, targets: Mapping[str, Sequence[str]], *, faster: float = 1
) -> Iterator[Prometheus]:
    """Run Prometheus while the block runs; its targets may start later.

    Args:
        directory: Empty directory for its files.
        port: Local port to listen on.
        targets: Hosts and ports by scrape job name in prometheus.yml.
        faster: Divisor of all times in the configuration and the rules.
    """
    (directory / "alerts.yml").write_text(scaled(ALERTS.read_text(encoding="utf-8"), faster))
    config = yaml.safe_load(scaled(CONFIG.read_text(encoding="utf-8"), faster))
    # A busy process does not answer any faster here.
    config["global"]["scrape_timeout"] = config["global"]["scrape_interval"]
    for scrape in config["scrape_configs"]:
        scrape["static_configs"] = [{"targets": list(targets[scrape["job_name"]])}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [
        binary() or "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        # Do not restore pending alarms from before a restart.
        "--rules.alert.for-grace-period=0s",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as written:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
    try:
        yield Prometheus(port, process, log)
    finally:
        process.kill()
        process.wait()
