"""Measures of jobs, for the metrics of `drain work --metrics-port`.

    memory          the measures of a slot, shared with the port
    worker_metrics  the worker's side: counts ended jobs

A slot's present process writes and the port reads, without locks. Each number is one word and only grows: a killed
process leaves its counts to its successor. Without a port, nothing is counted.
"""
