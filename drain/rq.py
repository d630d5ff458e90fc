"""Entry point under any name, so that RQ's tools show tracked jobs as `drain.rq.shop.receipt`.

Every attribute is the entry point. Define or import nothing here, or a job of that name would find it.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    # By name: `drain` must not depend on the workers.
    return import_module("drain.workers.entry").execute
