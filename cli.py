"""The command line of a checkout: `python cli.py` does what an installed `drain` does."""

from drain.script import main

if __name__ == "__main__":
    main()
