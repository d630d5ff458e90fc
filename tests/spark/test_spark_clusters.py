"""Each line of docs/bulk/spark-clusters.md works on a cluster whose workers lack the driver's environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from pathlib import Path
from urllib.request import urlopen

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyarrow import fs
from pyspark.find_spark_home import _find_spark_home

from drain.embedded.addresses import free_port
from drain.pipeline import java
from tests.helpers import PATIENCE_SECONDS, ROOT, query, wait_until
from tests.object_store import object_store

PAGE = (ROOT / "docs" / "bulk" / "spark-clusters.md").read_text(encoding="utf-8")
LINES = re.findall(r"^(?:drain|spark-submit) (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
SECRET = "hidden-from-all"
WORKERS = 2
SETTINGS = """
spark.driver.host 127.0.0.1
spark.eventLog.compress false
spark.eventLog.dir {directory}/events
spark.eventLog.enabled true
spark.executor.memory 512m
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""
# Python that notes that it has run without the driver's environment.
PYTHON = """#!/bin/sh
[ -n "$PGHOST" ] || touch {directory}/ran_on_a_worker
exec {python} "$@"
"""
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT id, 'tests.act', '[]', '{}', 'mail', 0, at, at, at, at, at, 1, 1
FROM generate_series(1, 50) AS id, LATERAL (SELECT now() - interval '5 days' AS at) AS time
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """URL of a cluster."""
    java.provide()
    # Not the driver's variables, and not its directory.
    kept = {
        name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "PATH") if name in os.environ
    }
    environment = kept | {
        "PYTHONPATH": str(ROOT),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        started = daemon("master.Master", f"--port {port} --webui-port {page}", environment, tmp_path)
        stack.enter_context(started)
        for number in range(WORKERS):
            words = f"--cores 1 --memory 1g --webui-port 0 --work-dir {tmp_path}/work{number} {url}"
            stack.enter_context(daemon("worker.Worker", words, environment, tmp_path))
        wait_until(lambda: alive(page) == WORKERS, 3 * PATIENCE_SECONDS)
        yield url


@contextmanager
def daemon(name: str, words: str, environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    program = Path(_find_spark_home(), "bin", "spark-class")
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *words.split()],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def alive(page: int) -> int:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{page}/json/") as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0


@pytest.fixture
def driver(database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of the driver: what it needs for Postgres and for a bucket with documents is there alone."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "events").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SETTINGS.format(directory=tmp_path))
    python = tmp_path / "shop" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(directory=tmp_path, python=sys.executable))
    python.chmod(0o755)
    given = conninfo_to_dict(database_url)
    libpq = {"dbname": "PGDATABASE", "host": "PGHOST", "port": "PGPORT", "user": "PGUSER"}
    with object_store() as variables:
        variables["AWS_SECRET_ACCESS_KEY"] = SECRET
        yield (
            dict(os.environ)
            | variables
            | {variable: str(given[name]) for name, variable in libpq.items() if name in given}
            | {"PGPASSWORD": SECRET, "DRAIN_DATABASE_URL": "postgresql:///", "PYTHONPATH": str(ROOT)}
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "SPARK_CONF_DIR": f"{tmp_path}/conf",
            }
        )


def put_documents(variables: Mapping[str, str]) -> None:
    """Make the bucket of the page."""
    keys = f"{variables['AWS_ACCESS_KEY_ID']}:{variables['AWS_SECRET_ACCESS_KEY']}"
    host = variables["AWS_ENDPOINT_URL"].removeprefix("http://")
    options = f"endpoint_override={host}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    store, _ = fs.FileSystem.from_uri(f"s3://{keys}@lake?{options}")
    store.create_dir("lake")
    with store.open_output_stream("lake/documents.csv") as file:
        file.write(b"id\n1\n2\n3\n")


def test_each_command_of_the_cluster_page_works(
    database_url: str, master: str, driver: dict[str, str], tmp_path: Path
) -> None:
    put_documents(driver)
    query(database_url, FINISHED)
    replaced = {"spark://head:7077": master, "/mnt/lake": str(tmp_path), "/opt/shop": str(tmp_path / "shop")}
    printed = []
    for line in LINES:
        own = reduce(lambda text, pair: text.replace(*pair), replaced.items(), line)
        done = subprocess.run(
            ["bash", "-c", own], cwd=tmp_path, env=driver, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    backfilled, archived, stats = printed
    assert "has staged 3 jobs" in backfilled
    assert query(database_url, "SELECT job_args FROM staged_jobs ORDER BY 1") == [
        (["1"],),
        (["2"],),
        (["3"],),
    ]
    assert "50 rows  archived" in archived
    assert query(database_url, "SELECT count(*) FROM finished_jobs") == [(0,)]
    assert "50 finished" in stats
    assert (tmp_path / "ran_on_a_worker").exists()
    logs = (*tmp_path.glob("events/**/*"), *tmp_path.glob("work?/**/std*"), *tmp_path.glob("*.log"))
    texts = [path.read_text(errors="replace") for path in logs if path.is_file()]
    assert len(texts) > len(LINES) * WORKERS
    assert not any(SECRET in text for text in texts)
