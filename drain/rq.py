"""The entry point under every name, so that RQ's tools show a tracked job by its own: `drain.rq.shop.send_receipt`.

RQ looks a function up as an attribute of the longest part of its name that can be imported, which is this module. All
attributes are the entry point, whatever they are called, so no name in Redis leads anywhere else. Nothing may be
defined or imported here: a job of that name would find it instead.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    # By its name, as RQ would: the drain's own modules know nothing of the workers.
    return import_module("workers.entry").execute
