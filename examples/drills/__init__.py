"""Drills: something is broken on purpose, and the tables are asked whether it harmed anything.

Each drill is a module with a SUMMARY and a `run`, and brings real servers and processes of its own:

    lease_race        a worker outlives its lease; another one takes the job over, and the first comes back
    kill_enqueuer     the leader is killed under load
    kill_worker       a worker is killed in the middle of a job
    flush_redis       Redis forgets everything under load
    restart_postgres  PostgreSQL crashes in the middle of work
    zombie_leader     the leader stands still in the middle of a batch, is replaced, and comes back
    late_commit       a job whose id is lower than that of one which has finished is committed after it

What they share:

    shop       the application: each order and its job in one transaction, some of them rolled back
    jobs       what a worker does for an order: one row, in the transaction that finishes the job
    environment  servers for all drills; a database and processes for each
    scenario     what a drill does there: starts and hurts processes, places orders, waits with a bound
    sessions   what PostgreSQL says of other sessions, and of their transactions
    invariants   what must be so at the end of every drill
    rows       short questions to the database
    verdict    evidence, of the race and of its survival
    report     what a reader sees
    catalogue    all drills by name, and how they are run

A drill whose race did not take place has failed, however well everything ended.
"""
