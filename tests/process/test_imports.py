"""What an import brings along: applications that stage and the children of `rq worker` pay for each of them."""

import subprocess
import sys

import pytest

from drain import extras
from tests.helpers import ROOT

pytestmark = pytest.mark.usefixtures("processes")

# Beside psycopg and what psycopg imports.
OF_THE_DRAIN = {"drain"}
# `uuid` is for `current_job().key`, and imports the other two.
OF_THE_WORKERS = {"drain", "uuid", "_uuid", "platform"}


def imported_by(statement: str, base: str = "import psycopg") -> set[str]:
    """Top-level packages that a statement imports in a new interpreter, beside those of `base`."""
    program = (
        f"import sys\n{base}\nbefore = set(sys.modules)\n{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


@pytest.mark.parametrize("name", ["job", "stage", "job, stage, StageError", "queues"])
def test_drain_imports_nothing_except_psycopg(name: str) -> None:
    assert imported_by(f"from drain import {name}") <= OF_THE_DRAIN


@pytest.mark.parametrize(
    "statement",
    [
        "from drain.workers import job",
        "from drain.workers import transaction, psycopg_transaction, current_job, Defer, Dead",
        "from drain import job, transaction, current_job, Defer, Dead",
    ],
)
def test_the_workers_names_import_nothing_that_a_job_does_not_need(statement: str) -> None:
    assert imported_by(statement) <= OF_THE_WORKERS


def test_the_entry_point_imports_nothing_that_a_job_does_not_need() -> None:
    # Deliveries of older versions find the entry point under this name.
    assert imported_by("import drain.workers.entry") <= OF_THE_WORKERS | {"workers"}


def test_sqlalchemys_imports_are_preloaded_if_the_jobs_module_uses_it() -> None:
    load = "from drain.workers.context.transaction import load_sessions; load_sessions()"
    assert (
        imported_by(
            f"import sqlalchemy; {load}; import drain.workers.context.session",
            base=f"import sqlalchemy; {load}",
        )
        == set()
    )
    assert "sqlalchemy" not in imported_by(load)


def test_drain_exports_the_names_of_the_workers_too() -> None:
    import drain
    from drain import workers

    for name in ("job", "transaction", "current_job", "Retry", "Defer", "RateLimited", "Dead"):
        assert getattr(drain, name) is getattr(workers, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        drain.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_cron_parsing_is_imported_only_when_needed() -> None:
    for statement in (
        "import drain",
        "import drain.__main__",
        "import drain.enqueuer.daemon",
        "import drain.workers.entry",
    ):
        assert not {"cronsim", "zoneinfo"} & imported_by(statement)


@pytest.mark.contrib
@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("drain.contrib.telemetry.opentelemetry", "opentelemetry", "opentelemetry"),
        ("drain.contrib.telemetry.opentelemetry", "opentelemetry.instrumentation", "opentelemetry"),
        ("drain.contrib.telemetry.sentry", "sentry_sdk", "sentry"),
        ("drain.contrib.alembic", "alembic", "alembic"),
    ],
)
def test_a_missing_extra_is_named(module: str, missing: str, extra: str) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nimport {module}"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {module} needs ")
    assert answer.stderr.endswith(f": {extras.install(extra)}\n")
