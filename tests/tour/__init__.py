"""Pictures of every page of `drain web` for the documentation, of real jobs on real servers.

python -m tests.tour

jobs      the jobs of a shop: most finish, some fail, one hangs
shop      the same, for the workers, as if they were in /srv/shop
history   three hours of such jobs, written into the tables
__main__  runs them for a while, and takes the pictures into docs/images/
"""
