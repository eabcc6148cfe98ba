"""What a new codec is tested with: Hypothesis strategies and conformance classes.

Needs the packages `hypothesis` and `pytest`; nothing else of orbax_gds imports this one.
"""

from orbax_gds.testing.conformance import CodecConformance
from orbax_gds.testing.strategies import arrays, chunks, dtypes, famous_words, shapes, words

__all__ = ["CodecConformance", "arrays", "chunks", "dtypes", "famous_words", "shapes", "words"]
