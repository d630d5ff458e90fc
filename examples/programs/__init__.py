"""The programs of a demonstration: started together, stopped or killed on purpose, and never left behind.

    child      one program: its signals and its log
    processes  all programs of one demonstration, and the guard that ends them if this process is killed

For the demo, the drills and the soak. Servers are not started here: `drain.embedded` has them.
"""

from programs.child import Child
from programs.processes import Processes, ended_by_sigterm

__all__ = ["Child", "Processes", "ended_by_sigterm"]
