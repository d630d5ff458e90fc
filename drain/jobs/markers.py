"""Jobs that mark a point in a flow. The leader finishes them itself, once they wait for no other job."""


def end_of_flow() -> None:
    """End a flow; does nothing, if a worker ever gets the job."""


def pause_of_flow() -> None:
    """Hold a paused flow; never becomes due."""
