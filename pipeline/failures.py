"""Errors of Spark, each explained in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from drain.errors import DrainError
from pipeline import interruption, jvm

# job-drain's own error in another process of Spark: it arrives as the last line of a traceback.
_OURS = re.compile(r"^drain\.errors\.\w+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# Reason that a row was refused for.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_UNESCAPED = re.compile(r"Unescaped quote character")
_CLASS_OF_ERROR = re.compile(r"^\[[A-Z_.0-9]+\]\s*")
_CAUSE = re.compile(r"^Caused by: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r"\bjava\.lang\.OutOfMemoryError: (.+)")
_LAST_OF_A_TRACEBACK = re.compile(r"^[\w.]+(?:Error|Exception|Exit): .+$", re.MULTILINE)


@contextmanager
def explained() -> Iterator[None]:
    """Turn an exception of Spark's into a DrainError with one line that says what went wrong.

    Raises:
        DrainError: Spark failed, or its JVM was killed; it replaces Spark's exception.
        KeyboardInterrupt: SIGINT cancelled Spark's jobs; see `pipeline.interruption`.
        SystemExit: SIGTERM or SIGHUP cancelled Spark's jobs.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        # An interruption is no failure of one day: after a DrainError the archive would go on with the next.
        interruption.check()
        jvm.check(error)
        raise DrainError(explanation(str(error))) from error


def explanation(text: str) -> str:
    """Find the line of Spark's message that says what went wrong; "Spark: no reason" if there is none."""
    ours = _OURS.findall(text) or _RAISED.findall(text)
    if ours:
        return str(ours[-1])
    memory = _OUT_OF_MEMORY.findall(text)
    if memory:
        return f"Spark ran out of memory ({memory[0].strip()}): give it more, such as --conf spark.driver.memory=2g"
    if _UNESCAPED.search(text):
        return (
            "a quoted field of a CSV holds a single quote character: double it, "
            "or name the escape, such as --option escape=\\"
        )
    causes = _LAST_OF_A_TRACEBACK.findall(text) or _CAUSE.findall(text)
    line = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "no reason")
    line = _CLASS_OF_ERROR.sub("", line.strip())
    return f"Spark: {line.partition(' SQLSTATE:')[0]}"
