"""On PYTHONPATH of a process that is not to wait as long as the real ones for a job that does not yield."""

import os

from workers import journal

journal.KILL_AFTER_SECONDS = float(os.environ["SITE_KILL_AFTER_SECONDS"])
