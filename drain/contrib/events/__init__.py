"""Job events derived from the tables: `drain events`.

    life       events of one row, in order: pure
    change_feed  rows that appeared since the last look
    follower   looks repeatedly, reports each event once
    command    `drain events`

Nothing is written. A state shorter than the polling interval is derived later, from the row's times.
"""
