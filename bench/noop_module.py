"""The resident function of the benchmark: takes anything, does nothing."""


def noop(**_: object) -> None:
    """Return at once, so that only the way there and back is measured."""
