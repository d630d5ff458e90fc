"""Jobs that open sessions, in a module that does not import SQLAlchemy: the first session of a process does."""

from drain import async_transaction, job, transaction


@job(max_attempts=1)
def in_a_thread(label: str) -> None:
    """Open a session in whatever thread runs the job."""
    with transaction():
        pass


@job(max_attempts=1)
async def in_the_loop(label: str) -> None:
    """Open one in the event loop."""
    async with async_transaction():
        pass


@job(max_attempts=1, isolated=True)
def in_a_child(label: str) -> None:
    """Open one in a process that is forked while the others begin."""
    with transaction():
        pass
