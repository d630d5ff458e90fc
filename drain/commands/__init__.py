"""The commands of `drain`, a module for each group of them; each reads its words, makes one call, shows the result.

setup       init, roles
run         the enqueuer
work        the workers
status      how many jobs are where
jobs        list, show
audit       is any job lost, doubled or stuck?
dead        list, show, retry, discard
prune       old days of finished jobs
dev         all that runs, for development
demo        demo, drill
database    the connection of a command that asks PostgreSQL
"""

import sys

from drain import packages
from drain.errors import NameTakenError

# Here, before a command imports one of these packages: an application's own would end in a traceback.
try:
    packages.require_own()
except NameTakenError as error:
    sys.exit(f"Error: {error}")
