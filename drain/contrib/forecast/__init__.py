"""Forecast: when the backlog of a queue ends, and how long other jobs wait meanwhile.

reading      the facts, read from the tables, the archive and Redis
inputs       facts that a forecast begins with: jobs that wait, workers, run times, arrivals
throughput   jobs that wait, have finished or came lately
run_times    run times of jobs that have finished, worked out from their rows
model        queues and workers that a simulation begins with
simulation   one simulation, in virtual time
prediction   many simulations: the median, and the range of nine in ten
report       when a backlog ends, and who waits meanwhile, for people
command      `drain forecast`
"""
