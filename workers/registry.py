"""The registry of jobs under its other name: this module is `drain.registry`."""

import sys

from drain import registry
from drain.registry import Job, find, job, limits, load, names, options, queues

__all__ = ["Job", "find", "job", "limits", "load", "names", "options", "queues"]

# One module under two names, so that both see one list of jobs.
sys.modules[__name__] = registry
