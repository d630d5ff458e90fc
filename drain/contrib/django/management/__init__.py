"""Commands of `manage.py`.

program   a command of `drain`, with the settings of Django filled in
commands  drain, drain_run, drain_work
"""
