"""Which function belongs to which name, and which options a registration takes."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import pytest

from drain.errors import ConfigError, JobModuleError, StageError
from drain.jobs import registry, rows, stager
from drain.jobs.options import JobOptions, RegisteredJob
from drain.workers import job


@pytest.fixture(autouse=True)
def an_empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def add(left: int, right: int = 1) -> int:
    """Add two numbers."""
    return left + right


def subtract(left: int, right: int) -> int:
    return left - right


def test_a_function_is_registered_under_its_dotted_path() -> None:
    registered = job()(add)
    assert registered.job_name == f"{__name__}.add"
    assert registry.find(registered.job_name) is registered
    assert registry.find("add") is None


def test_a_function_is_registered_under_the_name_that_is_given() -> None:
    assert job(name="sums.add")(add).job_name == "sums.add"
    assert registry.names() == ["sums.add"]


def test_a_function_that_no_worker_can_import_needs_a_name() -> None:
    with pytest.raises(StageError, match="no name that a worker could import"):
        job()(lambda: None)
    registered = job(name="sums.nothing")(lambda: None)
    assert registry.find("sums.nothing") is registered


def test_a_registered_function_is_still_called_as_before() -> None:
    registered = job()(add)
    assert_type(registered(2, right=3), int)
    assert registered(2, right=3) == 5
    assert registered(2) == 3
    assert (getattr(registered, "__name__", None), registered.__doc__) == ("add", "Add two numbers.")
    assert registered.function is add


def test_stage_uses_the_functions_arguments_and_the_registered_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged: list[tuple[Any, ...]] = []
    monkeypatch.setattr(stager, "stage", lambda *given: staged.append(given) or 7)  # type: ignore[func-returns-value]
    registered = job(queue="sums", max_attempts=2, timeout_seconds=3)(add)
    connection: Any = object()
    assert_type(registered.stage(connection, 2, right=3), int)
    assert registered.stage(connection, 2, right=3) == 7
    assert staged[-1] == (connection, registered, (2,), {"right": 3})
    assert isinstance(registered, RegisteredJob)
    options = registered.job_options
    assert (options.queue, options.max_attempts, options.timeout_seconds) == ("sums", 2, 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": 5}, "queue"),
        ({"queue": None}, "queue"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts must be a whole number, not True"),
        ({"max_attempts": "3"}, "max_attempts must be a whole number, not '3'"),
        ({"max_attempts": 3.0}, "max_attempts must be a whole number, not 3.0"),
        ({"max_attempts": None}, "max_attempts"),
        ({"max_attempts": 2**31}, "max_attempts"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": -5}, "timeout_seconds"),
        ({"timeout_seconds": 2**31}, "timeout_seconds"),
        ({"timeout_seconds": 1.5}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds must be a whole number, not True"),
        ({"timeout_seconds": "30"}, "timeout_seconds must be a whole number, not '30'"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds"),
        ({"retry_base_seconds": 0}, "retry_base_seconds"),
        ({"retry_base_seconds": -1}, "retry_base_seconds"),
        ({"retry_base_seconds": float("nan")}, "retry_base_seconds"),
        ({"retry_base_seconds": 10, "retry_cap_seconds": 9}, "retry_cap_seconds"),
        ({"retry_cap_seconds": float("nan")}, "retry_cap_seconds"),
        ({"retry_cap_seconds": float("inf")}, "retry_cap_seconds"),
        ({"retry_base_seconds": float("inf"), "retry_cap_seconds": float("inf")}, "retry_cap_seconds"),
        ({"retry_base_seconds": 1e308, "retry_cap_seconds": 1e308}, "retry_cap_seconds"),
        ({"retry_cap_seconds": 10**400}, "retry_cap_seconds"),
        ({"retry_base_seconds": "2"}, "retry_base_seconds must be a number, not '2'"),
        ({"retry_cap_seconds": True}, "retry_cap_seconds must be a number, not True"),
        ({"retry_cap_seconds": None}, "retry_cap_seconds must be a number, not None"),
        ({"retry_delays": []}, "retry_delays must be a list of seconds"),
        ({"retry_delays": 10}, r"such as \[10, 30, 60\], not 10"),
        ({"retry_delays": "10"}, "retry_delays must be"),
        ({"retry_delays": [10, -1]}, "retry_delays must be"),
        ({"retry_delays": [True]}, "retry_delays must be"),
        ({"retry_delays": ["10"]}, "retry_delays must be"),
        ({"retry_delays": [float("nan")]}, "retry_delays must be"),
        ({"retry_delays": [365 * 24 * 3600 + 1]}, "retry_delays must be"),
        ({"retry_on": ()}, r"retry_on must be a tuple of exception classes, such as \(OSError,\), not \(\)"),
        ({"retry_on": OSError}, "retry_on must be a tuple"),
        ({"retry_on": ("OSError",)}, "retry_on must be a tuple"),
        ({"give_up_on": (int,)}, "give_up_on must be a tuple"),
        ({"give_up_on": (OSError("x"),)}, "give_up_on must be a tuple"),
        (
            {"retry_on": (KeyError, ConnectionError), "give_up_on": (OSError,)},
            "retry_on contains ConnectionError, which give_up_on covers: it would never be retried",
        ),
        ({"retry_on": (OSError,), "give_up_on": (OSError,)}, "retry_on contains OSError"),
        ({"lease_seconds": 0}, "lease_seconds must be at least"),
        ({"lease_seconds": -30}, "lease_seconds must be at least"),
        ({"lease_seconds": 0.01}, "lease_seconds must be at least"),
        ({"lease_seconds": float("nan")}, "lease_seconds must be at least"),
        ({"lease_seconds": float("inf")}, "lease_seconds must be at least"),
        ({"lease_seconds": 24 * 3600 + 1}, "at most a day"),
        ({"lease_seconds": 10**400}, "at most a day"),
        ({"lease_seconds": "30"}, "lease_seconds must be a number, not '30'"),
        ({"lease_seconds": True}, "lease_seconds must be a number, not True"),
        ({"lease_seconds": None}, "lease_seconds must be a number, not None"),
        ({"lease_seconds": 10, "heartbeat_seconds": 5.01}, "lease_seconds at least twice that"),
        ({"lease_seconds": 10, "heartbeat_seconds": 10}, "lease_seconds at least twice that"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds must be above 0"),
        ({"heartbeat_seconds": -1}, "heartbeat_seconds must be above 0"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds must be above 0"),
        ({"heartbeat_seconds": "10"}, "heartbeat_seconds must be a number, not '10'"),
        ({"heartbeat_seconds": True}, "heartbeat_seconds must be a number, not True"),
        ({"max_execute_seconds": 0}, "max_execute_seconds must be above 0"),
        ({"max_execute_seconds": -1}, "max_execute_seconds must be above 0"),
        ({"max_execute_seconds": float("nan")}, "max_execute_seconds must be above 0"),
        ({"max_execute_seconds": float("inf")}, "max_execute_seconds must be above 0 and at most a year"),
        ({"max_execute_seconds": "90"}, "max_execute_seconds must be a number, not '90'"),
        ({"max_execute_seconds": False}, "max_execute_seconds must be a number, not False"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_at_import(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        job(**options)
    with pytest.raises(ValueError, match=complaint):
        JobOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"retry_base_seconds": 9, "retry_cap_seconds": 9},
        {"retry_on": [OSError], "give_up_on": (ConnectionError,)},
        {"retry_delays": [0]},
        {"retry_delays": (0.5, 365 * 24 * 3600)},
        {"lease_seconds": 0.1},
        {"lease_seconds": 24 * 3600},
        {"lease_seconds": 10, "heartbeat_seconds": 5},
        {"heartbeat_seconds": None, "max_execute_seconds": None},
        {"max_execute_seconds": 365 * 24 * 3600},
    ],
)
def test_options_at_their_limits_are_accepted(options: dict[str, Any]) -> None:
    assert job(**options)(add).job_options == JobOptions(**options)


@pytest.mark.parametrize("queue", ["bad queue!", "-mail", "a" * 101, "größe", "a\n"])
def test_an_invalid_queue_is_refused_at_import(queue: str) -> None:
    with pytest.raises(ValueError, match=r"is not a queue name: letters, digits, _ \. : - only") as refused:
        job(queue=queue)
    assert repr(queue) in str(refused.value)


@pytest.mark.parametrize("name", ["", 5])
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="name must be a non-empty string"):
        job(name=name)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_retries", "did you mean max_attempts?"),
        ("timeout", "did you mean timeout_seconds?"),
        ("lease", "did you mean lease_seconds?"),
        ("priority", r"drain\.stage\(\.\.\., priority=\.\.\.\)"),
        ("zzz", "Options: name, queue, max_attempts"),
    ],
)
def test_an_unknown_option_is_answered_with_the_known_ones(option: str, hint: str) -> None:
    anything: Any = job
    with pytest.raises(TypeError, match=hint) as refused:
        anything(**{option: 3})
    assert str(refused.value).startswith(f"job() has no option {option!r}")


def test_staging_by_name_checks_a_registered_jobs_arguments() -> None:
    job(name="sums.compute")(add)
    rows.insert_one("sums.compute", [1, 2])
    for args in ([1, "z"], []):
        with pytest.raises(StageError, match="argument"):
            rows.insert_one("sums.compute", args)
        with pytest.raises(StageError, match="argument"):
            list(rows.insert_many("sums.compute", [args]))


def test_an_unregistered_name_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows.insert_one("sums.unknown")
    assert caplog.records == []
    job(name="sums.compute")(add)
    for _ in range(2):
        rows.insert_one("sums.unknown")
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["event"]) == ("WARNING", "job_not_registered")
    assert "'sums.unknown'" in record.getMessage()


def test_two_functions_under_one_name_are_refused_and_both_are_named() -> None:
    first = job(name="sums.compute")(add)
    with pytest.raises(ValueError, match=r"'sums\.compute'") as refused:
        job(name="sums.compute")(subtract)
    assert f"{__name__}.add" in str(refused.value)
    assert f"{__name__}.subtract" in str(refused.value)
    assert registry.find("sums.compute") is first


def test_a_function_may_be_registered_again_when_its_module_is_reloaded(modules: Path) -> None:
    source = "from drain.workers import job\n@job(max_attempts={})\ndef send(): pass\n"
    (modules / "reloaded.py").write_text(source.format(3))
    registry.load(["reloaded"])
    assert registry.limits() == {"reloaded.send": (3, 180, 30)}
    (modules / "reloaded.py").write_text(source.format(44))
    importlib.reload(sys.modules["reloaded"])
    assert registry.limits() == {"reloaded.send": (44, 180, 30)}


def test_loading_imports_all_modules_and_knows_their_names_and_queues(modules: Path) -> None:
    for name, queue in (("mail", "slow"), ("receipts", "fast")):
        source = (
            f"from drain.workers import job\n@job(queue={queue!r}, timeout_seconds=9)\ndef send(): pass\n"
        )
        (modules / f"{name}.py").write_text(source)
    registry.load(["receipts", "mail"])
    assert registry.names() == ["mail.send", "receipts.send"]
    assert registry.queues() == {"slow", "fast"}
    assert registry.limits() == {"mail.send": (10, 9, 30), "receipts.send": (10, 9, 30)}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def (", "SyntaxError"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("from json import nonsense", "ImportError: cannot import name 'nonsense'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('first line\\nsecond line')", "ValueError: first line"),
        ("from drain.workers import job\n@job(max_attempts=-1)\ndef f(): pass", "ValueError: max_attempts"),
    ],
)
def test_a_module_that_fails_to_import_is_named_with_the_reason(
    modules: Path, source: str, reason: str
) -> None:
    (modules / "broken.py").write_text(source)
    with pytest.raises(JobModuleError) as refused:
        registry.load(["json", "broken"])
    text = str(refused.value)
    assert text.startswith("the job module 'broken' cannot be imported: ")
    assert reason in text
    assert "\n" not in text


def test_importing_a_moved_package_reports_its_new_name(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (modules / "of_yesterday.py").write_text("import workers")
    # A clone has a directory of this name.
    monkeypatch.setitem(sys.modules, "workers", None)
    with pytest.raises(JobModuleError, match=r"job-drain's `workers` is `drain.workers` now"):
        registry.load(["of_yesterday"])


def test_an_invalid_option_is_reported_with_its_decorators_line(modules: Path) -> None:
    source = "from drain.workers import job\n\n\n@job(queue='bad queue!')\ndef send(): pass\n"
    (modules / "misnamed.py").write_text(source)
    with pytest.raises(JobModuleError, match=r"'bad queue!' is not a queue name.* see misnamed\.py, line 4 "):
        registry.load(["misnamed"])


@pytest.mark.parametrize("name", ["no.such.module", "", ".relative", "json.", "shop jobs", "json\x00"])
def test_an_invalid_module_name_is_reported_on_one_line(name: str) -> None:
    with pytest.raises(JobModuleError, match="DRAIN_JOBS") as refused:
        registry.load([name])
    assert repr(name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "name"), [("./shop.py", "shop"), ("shop/jobs.py", "shop.jobs"), ("shop.py", "shop")]
)
def test_the_path_of_a_file_is_refused_with_the_name_of_its_module(path: str, name: str) -> None:
    with pytest.raises(JobModuleError) as refused:
        registry.load([path])
    assert str(refused.value) == (
        f"{path!r} is a path, not a module name: write {name!r} (DRAIN_JOBS, or --jobs)"
    )


def test_ctrl_c_during_an_import_is_not_a_module_error(modules: Path) -> None:
    (modules / "slow.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.load(["slow"])


def test_without_any_module_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"set DRAIN_JOBS .* such as shop\.jobs,shop\.mail"):
        registry.load([])
