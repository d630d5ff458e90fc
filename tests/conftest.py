"""What holds for all tests: the plugins, the environment, and that no hook is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys

# pytest imports it for the first warning of a destructor, and fails if two threads have one at once.
import tracemalloc  # noqa: F401
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from drain import health, hooks, metrics
from drain.embedded.binaries import find_postgres, find_redis
from drain.errors import EmbeddedError
from drain.jobs import registry

pytest_plugins = ["tests.layers", "tests.servers", "tests.fixtures"]

# Mean seconds of a test, by file; written by `make durations`.
DURATIONS = Path(__file__).with_name("durations.json")

# The time that an example takes, or that making it takes, says nothing on a busy machine.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Whoever starts the tests in the background of a script has them ignore Ctrl-C and SIGQUIT, and so would every process
# that they start: each PgBouncer would be waited for in vain, and killed 10 s later.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Spark ends here before compiling its code well has paid off: a third of the time on two cores.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# No session makes class data here, which takes more processor time than a test.
os.environ["XDG_CACHE_HOME"] = "/dev/null"
# pytest-xdist names a width in it, which is not a terminal's.
os.environ.pop("COLUMNS", None)
# They would lead the tests' clients to another server.
for variable in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[variable]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-durations`."""
    parser.addoption("--record-durations", action="store_true", help=f"write {DURATIONS.name}")


def pytest_configure(config: pytest.Config) -> None:
    """Fail with one line, rather than an error of each test, if a server that is named does not exist."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())
    try:
        find_postgres(None)
        find_redis(None)
    except EmbeddedError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first, so that all workers finish at about the same time."""
    recorded: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -recorded.get(item.path.name, 0.0))


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection."""
    gc.collect()
    gc.freeze()


class Durations:
    """Records the mean time of each file's tests."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test."""
        tests = self._seconds[Path(report.nodeid.partition("::")[0]).name]
        tests[report.nodeid] = tests.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the file; a file of tests that did not run keeps its time."""
        means = {name: round(sum(tests.values()) / len(tests), 3) for name, tests in self._seconds.items()}
        recorded = json.loads(DURATIONS.read_text(encoding="utf-8")) | means
        DURATIONS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without hooks, and undo what a test registers; those of telemetry do nothing until they are wanted."""
    for kind in ("around_hooks", "stage_hooks", "finish_hooks", "dead_hooks", "producers"):
        monkeypatch.setattr(hooks, kind, ())
    for kind in ("unhealthy_hooks", "recovery_hooks"):
        monkeypatch.setattr(health, kind, ())
    yield
    if (telemetry := sys.modules.get("drain.contrib.telemetry.opentelemetry")) is not None:
        instrumentor = telemetry.DrainInstrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()


@pytest.fixture(autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Forget the jobs that a test defines in itself: their names and arguments would hold for later tests."""
    before = set(registry._jobs)
    yield
    for name in registry._jobs.keys() - before:
        if "<locals>" in getattr(registry._jobs[name], "__qualname__", ""):
            del registry._jobs[name]


@pytest.fixture(autouse=True)
def no_label_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with all labels of metrics: another test may have used a thousand queues."""
    monkeypatch.setattr(metrics, "_labels", set())
    monkeypatch.setattr(metrics, "_pairs", {})
