"""How many functions of the package a piece of code calls."""

import sys
import threading


def calls_within(run):
    """Count the calls of functions of this package, in all threads."""
    n_calls = 0

    def count(frame, event, _):
        nonlocal n_calls
        n_calls += event == "call" and "orbax_gds" in frame.f_code.co_filename

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return n_calls
