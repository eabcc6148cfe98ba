"""What is read at once of several files is bounded, and no less than the bounds allow."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds.read_ranges import (
    CHAIN_BYTES,
    CHAIN_DECODED_BYTES,
    DECODED_BYTES,
    MAX_GAP_BYTES,
    READ_BYTES,
    groups,
)

Files = list[tuple[np.ndarray, np.ndarray]]


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Files, np.ndarray]:
    """Draw places of frames, of which some files have not all, and bytes of their words."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    k = draw(st.integers(0, 40))
    files = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = rng.integers(1, draw(st.sampled_from((1000, 1 << 20))), k)
        gaps = rng.choice([0, MAX_GAP_BYTES, MAX_GAP_BYTES + 1], k, p=[0.8, 0.1, 0.1])
        offsets = np.cumsum(gaps + sizes) - sizes
        sizes[rng.random(k) < draw(st.sampled_from((0, 0.3, 1)))] = 0
        files.append((offsets, sizes))
    return files, rng.integers(0, draw(st.sampled_from((1, 5 << 20, 20 << 20))), k)


def is_within(files: Files, decoded: np.ndarray, first: int, end: int) -> bool:
    """Whether a range may be read at once."""
    n_bytes, n_files = 0, sum(bool(sizes.any()) for _, sizes in files)
    for offsets, sizes in files:
        here = first + np.flatnonzero(sizes[first:end])
        ends = offsets[here] + sizes[here]
        if len(here):
            n_bytes += ends[-1] - offsets[here[0]]
        if (offsets[here[1:]] - ends[:-1] > MAX_GAP_BYTES).any():
            return False
    most, most_decoded = READ_BYTES, DECODED_BYTES
    if n_files > 1:
        most, most_decoded = CHAIN_BYTES, CHAIN_DECODED_BYTES
    return n_bytes <= most and decoded[first:end].sum() <= most_decoded


def lies_apart(files: Files, chunk: int) -> bool:
    """Whether a frame of a chunk lies far behind the one before it in its file."""
    for offsets, sizes in files:
        before = np.flatnonzero(sizes[:chunk])[-1:]
        gaps = offsets[chunk] - (offsets[before] + sizes[before])
        if sizes[chunk] and (gaps > MAX_GAP_BYTES).any():
            return True
    return False


@given(chunks())
def test_ranges_are_the_longest_within_the_bounds(drawn: tuple[Files, np.ndarray]) -> None:
    files, decoded = drawn
    ranges = list(groups(files, decoded))
    ends = [end for _, end in ranges]
    assert [first for first, _ in ranges] == [0, *ends][: len(ranges)]
    assert ends[-1:] == ([len(decoded)] if len(decoded) else [])
    for first, end in ranges:
        assert end - first == 1 or is_within(files, decoded, first, end)
        if end < len(decoded) and not lies_apart(files, end):
            assert not is_within(files, decoded, first, end + 1)
