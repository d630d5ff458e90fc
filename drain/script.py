"""The installed command; Ctrl-C during imports leaves no traceback."""

import signal
import sys


def main() -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from drain.__main__ import main as run

    signal.signal(signal.SIGINT, before)
    run(prog_name="drain")


# For `spark-submit`. Modules in this directory would shadow other packages.
if __name__ == "__main__":
    del sys.path[0]
    main()
