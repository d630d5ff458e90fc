"""The shop's jobs for its workers, compiled as `shop.jobs` of /srv/shop: tracebacks show what users have."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import ModuleType

_FILE = "/srv/shop/jobs.py"
_SOURCE = Path(__file__).with_name("jobs.py").read_text(encoding="utf-8")

# Tracebacks quote the source. Without a time of change, it is not looked up in the file.
linecache.cache[_FILE] = (len(_SOURCE), None, _SOURCE.splitlines(keepends=True), _FILE)
_module = sys.modules["shop.jobs"] = ModuleType("shop.jobs")
exec(compile(_SOURCE, _FILE, "exec"), vars(_module))
