"""Entry point under every name, so that RQ's tools show tracked jobs as `drain.rq.shop.receipt`.

RQ looks names up as attributes of this module, and all are the entry point: no name in Redis leads elsewhere. Define or
import nothing here: a job of that name would find it.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    # By name: `drain` must not depend on the workers.
    return import_module("drain.workers.entry").execute
