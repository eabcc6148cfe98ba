"""Talk of a running benchmark: to stderr, so that stdout holds data alone."""

import sys


def say(line: str) -> None:
    """Print one line about what runs now."""
    print(line, file=sys.stderr, flush=True)
