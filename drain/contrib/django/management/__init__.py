"""Commands of `manage.py`.

program   base: a command of `drain` with Django's settings
commands  drain, drain_run, drain_work
"""
