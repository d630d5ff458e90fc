"""`make soak`: everything at once, for as long as you like, while everything is killed, stopped and flushed.

Applications stage jobs of many kinds, and roll some back; two enqueuers and several workers, ours and RQ's
own, work on them; an operator changes rules, pauses, cancels, moves and revives. Meanwhile a plan made from a
seed kills, stops, restarts and empties all of them, PostgreSQL and Redis included.

A run is a sequence of windows. After each one, faults and applications pause until no job is left; then the tables must
agree with what was asked for, and all jobs are forgotten. So a run of a day takes the memory and disk of one window.
What programs and servers take is sampled, and must stay flat. Some processes are stopped but never ended, since a
young process shows no leak.

    plan       which fault comes when: the same for the same seed
    tables     what the applications ask for, and what the jobs leave behind
    jobs       the kinds of jobs
    producer   an application: stages jobs, and says which of its commits it was told of
    operator   a person and programs of an operator: rules, pauses, cancels, moves
    fleet      all the processes, and whoever starts them again
    servers    PostgreSQL with a replica, Redis, their disks and network
    clock      the clock of PostgreSQL
    faults     what each fault does, and how it ends
    chaos      the plan at work
    survived   what the faults have led to: takeovers, redeliveries, refusals
    verdict    whether anything was lost, ran without a commit, or happened twice
    samples    memory, tables, disk, WAL, sessions and open files
    flat       whether the samples stay flat
    report     what a reader sees
    plots      the samples as a picture
"""

import sys
from pathlib import Path

# `python -m tests.soak` finds the package `programs` there, as pytest does.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
