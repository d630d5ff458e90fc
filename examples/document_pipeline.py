"""A document pipeline: paid calls in a flow that resumes without paying twice.

`python -m examples.document_pipeline DOCUMENT` stages extract -> (summary, translation) -> publish.

A finished node never runs again, and keeps its result. If a worker dies between a call and its record, the call is
repeated with the same key, so it isn't billed again. A dead node holds the nodes after it until `drain dead retry`.
"""

import os
import sys

import psycopg

import drain
from drain import Flow, current_job, job

URL = os.environ.get("DRAIN_DATABASE_URL", "")
# `bills` are the service's own books.
TABLES = """
CREATE TABLE IF NOT EXISTS bills (id text PRIMARY KEY, service text, answer text);
CREATE TABLE IF NOT EXISTS published (document text, summary text, translation text);
CREATE TABLE IF NOT EXISTS alarms (document text);
"""
BILL = "INSERT INTO bills VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET id = bills.id RETURNING answer"


def pay(service: str, text: str, key: str) -> str:
    """Call a paid service, which answers and bills once per key."""
    with psycopg.connect(URL, autocommit=True) as books:
        return str(books.execute(BILL, [key, service, f"{service} of {text}"]).fetchall()[0][0])


def call(service: str, text: str) -> str:
    """Call a service as a step of the running job."""
    return str(drain.step(service, pay, service, text, key=f"{current_job().key} {service}"))


@job(result="keep", max_attempts=2, retry_base_seconds=0.1)
def extract(document: str) -> str:
    """Read the text of a scan, and correct it."""
    return call("spelling", call("ocr", document))


@job(result="keep", max_attempts=2, retry_base_seconds=0.1)
def ask(service: str) -> str:
    """Ask a service about the text."""
    return call(service, current_job().results["extract"])


@job
def publish(document: str) -> None:
    """Publish the answers exactly once."""
    results = current_job().results
    with drain.psycopg_transaction() as connection:
        row = [document, results["summary"], results["translation"]]
        connection.execute("INSERT INTO published VALUES (%s, %s, %s)", row)


@job
def alarm(document: str) -> None:
    """Report the first dead node."""
    with drain.psycopg_transaction() as connection:
        connection.execute("INSERT INTO alarms VALUES (%s)", [document])


def pipeline(document: str) -> Flow:
    """Build the flow; it is staged once per document."""
    once = f"document {document}"
    flow = Flow("document", key=document, idempotency_key=once, on_dead=(alarm, [document]))
    flow.add("extract", extract, [document])
    for name in ("summary", "translation"):
        flow.add(name, ask, [name], after="extract", on_failure="hold")
    flow.add("publish", publish, [document], after=["summary", "translation"], on_failure="hold")
    return flow


if __name__ == "__main__":
    with psycopg.connect(URL) as connection:
        connection.execute(TABLES)
        print(pipeline(sys.argv[1]).stage(connection))
