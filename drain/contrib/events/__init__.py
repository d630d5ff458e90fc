"""Lives of jobs, told from what the tables keep: `drain events`.

    life       the events of one row, in their order: pure
    change_feed  rows that have appeared since an earlier look
    follower   looks again and again, and tells each event once
    command    `drain events`

What always holds: nothing is written, and no trace is left in the database; a state that was shorter than the time
between two looks is told from the times in the row, later and in its place.
"""
