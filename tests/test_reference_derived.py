"""Derived shards of the NumPy reference, and what every reader refuses of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from derived_items import (
    BF16,
    COPY,
    FP32,
    ROUND,
    arrays_of,
    assert_refused,
    derived,
    rounded,
    write_item,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.codecs.reference_stripe import SECTION, SHARD
from orbax_gds.dtypes import words_of
from orbax_gds.errors import Corrupt, OgdsError, Unsupported
from orbax_gds.testing import famous_words, words


@given(drawn=words(FP32, max_words=300))
def test_rounded_and_copied_leaves_read_back(
    tmp_path_factory: pytest.TempPathFactory, drawn: np.ndarray
) -> None:
    directory = tmp_path_factory.mktemp("item")
    source = np.concatenate([drawn, famous_words(FP32), famous_words(FP32) ^ 0x8000]).view("f4")
    arrays = [rounded(source), source.copy(), source]
    shards = [derived(0, 2, ROUND, source.shape), derived(1, 2, COPY, source.shape)]
    write_item(directory, arrays, [2], shards)
    for number, read in enumerate(reference.read_item(directory).values()):
        assert read.tobytes() == arrays[number].tobytes()


@settings(max_examples=15)
@given(rows=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_box_may_be_derived_and_the_rest_stored(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int
) -> None:
    directory = tmp_path_factory.mktemp("item")
    source = np.random.default_rng(seed).normal(size=(6, 3)).astype(np.float32)
    leaf = rounded(source)
    leaf[rows:] = 0
    shards = [derived(1, 0, ROUND, (rows, 3))]
    frames = [
        reference.encode_frame(words_of(source), FP32),
        reference.encode_frame(words_of(leaf[rows:]), BF16, chunk=1),
    ]
    box = {"start": (rows, 0), "extent": (6 - rows, 3), "chunk_extent": (6 - rows, 3)}
    shards.append(Shard(leaf=1, first_chunk=1, **box))
    shards.append(Shard(leaf=0, first_chunk=0, start=(0, 0), extent=(6, 3), chunk_extent=(6, 3)))
    write_item(directory, [source, leaf], [], shards)
    stripe = reference.write_stripe(directory, shards, frames, uuid=bytes(16))
    manifest = reference.parse_manifest((directory / "manifest.json").read_bytes())
    fields = {name: value for name, value in manifest.items() if name != "crc32c"}
    fields["stripes"] = [stripe]
    (directory / "manifest.json").write_bytes(reference.encode_manifest(fields))
    found = list(reference.read_item(directory).values())
    assert [array.tobytes() for array in found] == [source.tobytes(), leaf.tobytes()]


@pytest.mark.parametrize(
    ("shard", "error"),
    [
        (derived(0, 1, 3, (4,)), Unsupported),
        (derived(0, 1, COPY, (4,)), Corrupt),
        (derived(0, 2, COPY, (4,)), Corrupt),
        (derived(0, 9, ROUND, (4,)), Corrupt),
        (derived(0, 0, COPY, (4,)), Corrupt),
        (derived(0, 1, ROUND, (5,)), Corrupt),
        (derived(0, 1, ROUND, (3,)), Corrupt),
        (derived(0, 1, ROUND, (4,), (1,)), Corrupt),
        (replace(derived(0, 1, ROUND, (4,)), chunk_extent=(4,)), Corrupt),
        (derived(0, 3, ROUND, (4,)), Corrupt),
        (derived(0, 1, ROUND, (4, 1)), Corrupt),
        (derived(1, 4, COPY, (4, 1)), Corrupt),
    ],
    ids=[
        "rule 3",
        "copy of another dtype",
        "copy of nothing",
        "source that is no leaf",
        "itself",
        "outside",
        "a part",
        "outside at the end",
        "chunk extent",
        "another shape",
        "another rank",
        "another rank of a source",
    ],
)
def test_malformed_derived_shards_are_refused(
    tmp_path: Path, shard: Shard, error: type[OgdsError]
) -> None:
    arrays = [*arrays_of(BF16, FP32, BF16), np.zeros(5, np.float32), np.zeros(4, np.float32)]
    write_item(tmp_path, arrays, [1, 3, 4], [shard, derived(2, 1, ROUND, (4,))])
    assert_refused(tmp_path, error)


@pytest.mark.parametrize(("flags", "n"), [(3, 0), (6, 0), (2, 1)])
def test_derived_shards_have_no_chunks_and_no_other_flag(
    tmp_path: Path, flags: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = SECTION.pack(0, 1) + SHARD.pack(0, 1, n, flags, 2)
    monkeypatch.setattr("orbax_gds.codecs.reference_stripe.encode_layout", lambda shards: layout)
    write_item(tmp_path, arrays_of(BF16, FP32, shape=()), [1], [])
    assert_refused(tmp_path, Corrupt)


def test_a_derived_shard_whose_words_are_stored_too_is_refused(tmp_path: Path) -> None:
    write_item(tmp_path, arrays_of(BF16, FP32), [0, 1], [derived(0, 1, ROUND, (4,))])
    assert_refused(tmp_path, Corrupt)


def test_an_item_with_derived_shards_requires_the_feature(tmp_path: Path) -> None:
    arrays = arrays_of(BF16, FP32)
    write_item(tmp_path, arrays, [1], [derived(0, 1, ROUND, (4,))], requires=[])
    with pytest.raises(Corrupt, match="does not require it"):
        reference.read_item(tmp_path)
