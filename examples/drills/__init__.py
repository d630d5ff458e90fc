"""Drills: each breaks something on purpose, and checks by the tables that no job was harmed.

Each drill is a module with a SUMMARY and a `run`, and brings real servers and processes of its own:

    lease_race        a worker outlives its lease; another one takes the job over, and the first comes back
    kill_enqueuer     the leader is killed under load
    kill_worker       a worker is killed in the middle of a job
    flush_redis       Redis forgets everything under load
    restart_postgres  PostgreSQL crashes in the middle of work
    zombie_leader     the leader is stopped before it pushes a batch, is replaced, and comes back
    late_commit       a job whose id is lower than that of one which has finished is committed after it

The modules that all drills use:

    catalogue         all drills by name, and the runner that `drain drill` calls
    environment       servers for all drills; a database and processes for each
    scenario          actions of a drill: start and harm processes, place orders, wait with a timeout
    shop              the application: each order and its job in one transaction, some of them rolled back
    jobs              the job of an order: one row, in the transaction that finishes the job
    sessions          other sessions of PostgreSQL, and their transactions
    rows              short queries
    invariants        conditions that hold at the end of every drill
    verdict           evidence that the race took place, and that it did no harm
    report            output: events, evidence, verdicts

A drill whose race did not take place has failed, whatever the tables say.
"""
