"""`drain dev`: servers, an enqueuer and a worker that reloads, in one terminal.

development  starts all of them, restarts what ends, and ends them in order
program      one child process, its output by lines, and a guard that it cannot outlive
worker       the child's side: imports the job modules, and says what is wrong with them
sources      notices that a Python file has changed
console      lines that say which program writes them
ports        whether a port is free
hold         a directory of data belongs to one `drain dev` at a time
"""

from drain.dev.development import Development, Plan

__all__ = ["Development", "Plan"]
