"""Commands of `manage.py`.

program   base of the commands
commands  drain, drain_run, drain_work
"""
