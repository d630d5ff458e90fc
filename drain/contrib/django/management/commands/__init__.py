"""Commands that Django finds by name.

drain       the command line: `manage.py drain status`
drain_run   the enqueuer: `manage.py drain_run`
drain_work  the workers: `manage.py drain_work`
"""
