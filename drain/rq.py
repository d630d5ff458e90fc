"""Entry point of tracked jobs under any name, so that RQ's tools show a job's own name: `drain.rq.shop.send_receipt`.

RQ looks a function up as an attribute of the longest part of its name that can be imported, which is this module. Every
attribute of it, of any name, is the entry point, so no name in Redis leads to another function. Nothing may be defined
or imported here: a job of that name would find it instead.
"""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    # Imported by name, as RQ does: the modules of `drain` do not depend on `workers`.
    return import_module("workers.entry").execute
