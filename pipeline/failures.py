"""Spark's errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from drain.errors import DrainError
from drain.pipeline import interruption, jvm
from drain.pipeline.lake.files import DATE

# Our own error in another process' traceback.
_OURS = re.compile(r"^drain\.errors\.\w+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# The groups of a pattern fill its meaning.
_MEANINGS = {
    r"\bjava\.lang\.OutOfMemoryError: (.+)": (
        "Spark ran out of memory ({0}): give it more, such as --conf spark.driver.memory=2g"
    ),
    r"\bPython worker exited unexpectedly|\bStream closed\b(?=[\s\S]*\bapi\.python\.Python)": (
        "a Python process of Spark was killed, as happens when memory runs out: free memory, "
        "or use fewer cores, such as --master 'local[1]'"
    ),
    r"Unescaped quote character": (
        "a quoted CSV field contains a lone quote character: double it, "
        "or name the escape, such as --option escape=\\"
    ),
    r"CSV header does not conform to the schema": (
        "the first line of a CSV has a name twice or an empty name, or differs from that of another file; "
        "pandas names its index only with index_label, and leaves it out with index=False"
    ),
    r'No FileSystem for scheme "(\w+)"|Class (org\.apache\.hadoop\.fs\.[\w.]*FileSystem) not found': (
        "Spark: no driver for {0}{1}: name a directory, or add Hadoop's with --conf spark.jars"
    ),
    rf"\b(File|Path) .*/{DATE}=.*does not exist|does not exist: .*/{DATE}=": (
        "files of the archive were replaced during the read: run this again"
    ),
    r"\bFile (file:\S+) does not exist": (
        "{0} does not exist where Spark reads it: a cluster needs a path that all machines can read"
    ),
}
_CLASS_OF_ERROR = re.compile(r"^\[[A-Z_.0-9]+\]\s*")
_SERVED = re.compile(r"webhdfs://[^/\s]+/[0-9a-f]{32}/(\w+)/")
_CAUSE = re.compile(r"^Caused by: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_LAST_OF_A_TRACEBACK = re.compile(r"^[\w.]+(?:Error|Exception|Exit): .+$", re.MULTILINE)


@contextmanager
def explained() -> Iterator[None]:
    """Turn Spark's exceptions into a DrainError; a signal raises as in `interruption.check`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        # After a DrainError, the archive would continue with the next day.
        interruption.check()
        jvm.check(error)
        raise DrainError(explanation(str(error))) from error


def stored(text: str) -> str:
    """Replace the gateway's URLs by the store's."""
    return _SERVED.sub(r"\1://", text)


def explanation(text: str) -> str:
    """Return the explaining line of Spark's message."""
    ours = _OURS.findall(text) or _RAISED.findall(text)
    if ours:
        return str(ours[-1])
    for pattern, meaning in _MEANINGS.items():
        if found := re.search(pattern, text):
            return meaning.format(*(group.strip() if group else "" for group in found.groups()))
    causes = _LAST_OF_A_TRACEBACK.findall(text) or _CAUSE.findall(text)
    line = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "no reason")
    line = stored(_CLASS_OF_ERROR.sub("", line.strip()))
    return f"Spark: {line.partition(' SQLSTATE:')[0]}"
