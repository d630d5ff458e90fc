"""Upper bounds of the buckets in which `drain work` counts the times of jobs, in seconds."""

from __future__ import annotations

# Seconds that an attempt runs.
RUN_BUCKETS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
# Seconds that a job waits. An SLO names one of them: only there the share that has met it is exact.
WAIT_BUCKETS: tuple[float, ...] = (
    *(
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1.0,
        2.0,
        3.0,
        5.0,
        10.0,
        15.0,
        20.0,
        30.0,
        60.0,
        120.0,
        180.0,
        300.0,
    ),
    *(600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0),
)
