"""`drain audit --textfile` writes its result as metrics, as a whole or not at all."""

import subprocess
from pathlib import Path
from time import time

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from drain.__main__ import main
from tests.helpers import environment, query
from tests.process.test_work_metrics import PROMTOOL


def audit(database_url: str, redis_url: str, *words: str) -> Result:
    command = ["audit", "--patience-seconds", "0", *words]
    return CliRunner().invoke(main, command, env=environment(database_url, redis_url))


def values(path: Path) -> dict[str, float]:
    families = text_string_to_metric_families(path.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.usefixtures("processes")
def test_an_audit_leaves_its_result_and_its_time(database_url: str, redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "drain.prom"
    began = time()
    assert audit(database_url, redis_url, "--textfile", str(path)).exit_code == 0
    first = values(path)
    assert (first["drain_audit_breaches"], first["drain_audit_unchecked"]) == (0, 0)
    assert began <= first["drain_audit_timestamp_seconds"] <= time()

    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) SELECT 'm.f', at, at "
        "FROM (SELECT now() - interval '1 day' AS at) AS earlier",
    )
    assert audit(database_url, redis_url, "--textfile", str(path), "--json").exit_code == 1
    assert values(path)["drain_audit_breaches"] == 1
    assert values(path)["drain_audit_timestamp_seconds"] > first["drain_audit_timestamp_seconds"]

    query(database_url, "TRUNCATE staged_jobs")
    assert audit(database_url, "redis://127.0.0.1:1/0", "--textfile", str(path)).exit_code == 3
    assert (values(path)["drain_audit_breaches"], values(path)["drain_audit_unchecked"]) == (0, 1)
    assert list(tmp_path.iterdir()) == [path]
    if PROMTOOL is not None:
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"],
            input=path.read_text(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", ["missing/drain.prom", "."])
def test_an_unwritable_file_is_reported_before_the_audit(
    database_url: str, redis_url: str, tmp_path: Path, name: str
) -> None:
    result = audit(database_url, redis_url, "--textfile", str(tmp_path / name))
    assert result.exit_code == 1
    assert "choose another --textfile" in result.output
    assert "each id is in exactly one table" not in result.output


def test_an_audit_of_a_list_writes_no_metrics(database_url: str, redis_url: str, tmp_path: Path) -> None:
    words = ("--textfile", str(tmp_path / "drain.prom"), "--expected", "sql:SELECT 1 AS id")
    assert audit(database_url, redis_url, *words).exit_code == 2


def test_a_file_that_node_exporter_would_not_read_is_refused(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    refused = audit(database_url, redis_url, "--textfile", str(tmp_path / "drain.txt"))
    assert (refused.exit_code, "names end in .prom" in refused.stderr) == (1, True)
    assert not list(tmp_path.iterdir())
