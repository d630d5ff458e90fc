"""The installed command `drain`: Ctrl-C while its modules are imported ends it without a traceback."""

import signal
import sys


def main() -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from drain.__main__ import main as run

    signal.signal(signal.SIGINT, before)
    run(prog_name="drain")


# `spark-submit` runs files that end in .py alone. Modules next to this one share names with other packages.
if __name__ == "__main__":
    del sys.path[0]
    main()
