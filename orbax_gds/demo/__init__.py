"""`orbax-gds demo`: train, die in the middle of a save, resume, prove it, and compare.

The extra `[demo]` brings what it needs beyond the package: flax and optax.
"""

from orbax_gds.demo.job import DemoFailed
from orbax_gds.demo.story import main

__all__ = ["DemoFailed", "main"]
