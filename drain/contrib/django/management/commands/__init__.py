"""Commands that Django finds by name.

drain       the command line
drain_run   the enqueuer
drain_work  the workers
"""
