"""On PYTHONPATH of a process whose waits are to be other than the real ones: see `tests.helpers.impatient`."""

import json
import os
from importlib import import_module

for name, seconds in json.loads(os.environ["SITE_SECONDS"]).items():
    module, _, constant = name.rpartition(".")
    if not hasattr(import_module(module), constant):
        raise AttributeError(name)
    setattr(import_module(module), constant, seconds)
