"""Entry point of the installed command `drain`: Ctrl-C while its modules are imported ends it without a traceback.

Outside of the package `drain`, whose own import takes a part of that time.
"""

import signal


def main() -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from drain.__main__ import main as run

    signal.signal(signal.SIGINT, before)
    run()
