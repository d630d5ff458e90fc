"""Entry point under every name, so that RQ's tools show a tracked job by a name of its own: `drain.rq.shop.receipt`.

RQ looks a function up as an attribute of the longest part of its name that can be imported, which is this module. Every
attribute is the entry point, whatever its name, so no name in Redis leads to any other function. Nothing may be
defined or imported here: a job of that name would find it instead.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    # Imported by name, as RQ does: the drain's own modules know nothing of the workers.
    return import_module("drain.workers.entry").execute
