"""Items of the NumPy reference: any cut reads back, and what does not fit is refused."""

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds.codecs import codec_by_name, reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.dtypes import Dtype, dtype_of, words_of
from orbax_gds.errors import Corrupt, NotFound, OgdsError, Unsupported
from orbax_gds.testing import arrays, chunks, shapes

UUID = bytes(range(16))


def leaf_entry(name: str, array: np.ndarray) -> dict:
    path = [["k", name], ["i", 0]]
    entry = {"path": path, "type": "numpy.ndarray", "dtype": array.dtype.name}
    return entry | {"shape": list(array.shape)}


def write_manifest(directory: Path, leaves: list[dict], stripes: list[dict], **changes) -> None:
    fields = {"format": 1, "requires": [], "writer": "test", "leaves": leaves, "shardings": []}
    fields |= {"stripes": stripes, "sidecars": {}, "options": {}}
    manifest = reference.encode_manifest(fields | changes)
    (directory / "manifest.json").write_bytes(manifest)


class StripeBuilder:
    """Collects shards and the frames of their chunks."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.frames: list[bytes] = []

    def add_words(self, words: np.ndarray, dtype: Dtype) -> None:
        codec = "ladder" if codec_by_name("ladder").supports(dtype) else "raw"
        number = len(self.frames)
        self.frames.append(
            reference.encode_frame(words, dtype, codec=codec, chunk=number, block_map=True)
        )

    def add_box(
        self, leaf: int, array: np.ndarray, start: tuple[int, ...], chunk_extent: tuple[int, ...]
    ) -> None:
        shard = Shard(
            leaf=leaf,
            first_chunk=len(self.frames),
            start=start,
            extent=array.shape,
            chunk_extent=chunk_extent,
        )
        self.shards.append(shard)
        for chunk in range(shard.first_chunk, shard.first_chunk + prod(shard.grid)):
            at, extent = shard.cell(chunk)
            box = [slice(a - s, a - s + n) for a, s, n in zip(at, start, extent, strict=True)]
            cell = array[(*box, ...)]  # with the dots a 0-d cell stays an array and keeps its bits
            self.add_words(words_of(np.ascontiguousarray(cell)), dtype_of(array.dtype))

    def add_pool(self, leaves: list[tuple[int, np.ndarray]]) -> None:
        at = 0
        for leaf, array in leaves:
            self.shards.append(
                Shard(
                    leaf=leaf,
                    first_chunk=len(self.frames),
                    start=(0,) * array.ndim,
                    extent=array.shape,
                    chunk_extent=array.shape,
                    pooled=True,
                    offset_words=at,
                )
            )
            at += words_of(array).size
        pool = np.concatenate([words_of(array) for _, array in leaves])
        self.add_words(pool, dtype_of(leaves[0][1].dtype))

    def write(self, directory: Path, process: int = 0) -> dict:
        return reference.write_stripe(
            directory,
            self.shards,
            self.frames,
            uuid=UUID[process:] + UUID[:process],
            process=process,
        )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@settings(max_examples=12)
@given(
    data=st.data(),
    leaves=st.lists(arrays(shape=shapes(max_rank=3, max_side=5)), min_size=1, max_size=5),
)
def test_any_item_in_any_cut_reads_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, leaves: list[np.ndarray]
) -> None:
    directory = tmp_path_factory.mktemp("item")
    stripes = [StripeBuilder(), StripeBuilder()]
    for number, array in enumerate(leaves):
        if array.size == 0:
            continue
        cut = data.draw(st.integers(0, array.shape[0])) if array.ndim else 0
        pieces = [(0, array[:cut]), (cut, array[cut:])] if array.ndim else [(0, array)]
        for at, piece in pieces:
            if piece.size:
                chunk_extent = tuple(data.draw(st.integers(1, n + 1)) for n in piece.shape)
                start = (at, *[0] * (array.ndim - 1)) if array.ndim else ()
                builder = data.draw(st.sampled_from(stripes))
                builder.add_box(number, piece, start, chunk_extent)
    entries = [builder.write(directory, process) for process, builder in enumerate(stripes)]
    names = [str(number) for number in range(len(leaves))]
    write_manifest(directory, list(map(leaf_entry, names, leaves)), entries)
    read = reference.read_item(directory)
    for name, array in zip(names, leaves, strict=True):
        assert same_bits(read[(("k", name), ("i", 0))], array)


@settings(max_examples=20)
@given(data=st.data())
def test_pooled_leaves_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("item")
    first = data.draw(arrays(shape=shapes(max_side=5).filter(all)))
    dtype = dtype_of(first.dtype)
    others = data.draw(
        st.lists(
            arrays(where=lambda d: d is dtype, shape=shapes(max_side=5).filter(all)), max_size=4
        )
    )
    leaves = [first, *others]
    builder = StripeBuilder()
    builder.add_pool(list(enumerate(leaves)))
    entries = [leaf_entry(str(number), leaf) for number, leaf in enumerate(leaves)]
    write_manifest(directory, entries, [builder.write(directory)])
    read = reference.read_item(directory)
    for number, leaf in enumerate(leaves):
        assert same_bits(read[(("k", str(number)), ("i", 0))], leaf)


@pytest.fixture
def item(tmp_path: Path) -> Path:
    """A small item: a leaf in two stripes, and one of two pooled leaves."""
    kernel = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
    bias = np.arange(7, dtype=np.int8)
    builders = [StripeBuilder(), StripeBuilder()]
    builders[0].add_box(0, kernel[:4], (0, 0), (3, 10))
    builders[1].add_box(0, kernel[4:], (4, 0), (2, 5))
    builders[0].add_pool([(1, bias), (2, bias[:1].reshape(()))])
    stripes = [builder.write(tmp_path, process) for process, builder in enumerate(builders)]
    leaves = [leaf_entry("kernel", kernel), leaf_entry("bias", bias)]
    leaves += [leaf_entry("step", bias[:1].reshape(())), {"path": [["k", "none"]], "type": "None"}]
    write_manifest(tmp_path, leaves, stripes)
    return tmp_path


def test_leaves_without_words_are_not_in_a_read_item(item: Path) -> None:
    read = reference.read_item(item)
    assert sorted(path[0][1] for path in read) == ["bias", "kernel", "step"]


@pytest.mark.slow
def test_every_damaged_byte_of_a_stripe_and_damaged_manifests_are_refused(item: Path) -> None:
    # The zeros before the frames are one case, tried at both ends.
    stripe_bytes = [*range(300), *range(4090, (item / "p00001.ogds").stat().st_size)]
    manifest_bytes = range(0, (item / "manifest.json").stat().st_size, 5)
    for name, places in (("p00001.ogds", stripe_bytes), ("manifest.json", manifest_bytes)):
        with (item / name).open("r+b", buffering=0) as file:
            for at in places:
                byte = os.pread(file.fileno(), 1, at)
                os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << at % 8]), at)
                with pytest.raises(OgdsError):
                    reference.read_item(item)
                os.pwrite(file.fileno(), byte, at)
    reference.read_item(item)


@pytest.mark.slow
def test_an_item_cut_anywhere_is_refused(item: Path) -> None:
    for path in item.iterdir():
        data = path.read_bytes()
        for n_bytes in [len(data) - 1, *range(len(data) - 13, 0, -13), 0]:
            os.truncate(path, n_bytes)
            with pytest.raises(Corrupt):
                reference.read_item(item)
        path.write_bytes(data)


def test_swapped_and_missing_files_are_refused(item: Path) -> None:
    a, b = item / "p00000.ogds", item / "p00001.ogds"
    a.rename(item / "x")
    with pytest.raises(NotFound, match="p00000"):
        reference.read_item(item)
    b.rename(a)
    (item / "x").rename(b)
    with pytest.raises(Corrupt, match="p00000"):
        reference.read_item(item)
    (item / "manifest.json").unlink()
    with pytest.raises(NotFound, match=r"manifest\.json"):
        reference.read_item(item)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("format", 2, Unsupported),
        ("format", True, Corrupt),
        ("requires", ["segments"], Unsupported),
        ("base", {}, Corrupt),
        ("writer", None, Corrupt),
        ("options", [], Corrupt),
        ("leaves", [{"path": [], "type": "None"}] * 2, Corrupt),
        ("leaves", [{"path": [["k", True]], "type": "None"}], Corrupt),
        ("leaves", [{"path": [["z", 1]], "type": "None"}], Corrupt),
        ("leaves", [{"path": [["k"]], "type": "None"}], Corrupt),
        ("leaves", [{"path": [], "type": "int", "dtype": "int64"}], Corrupt),
        ("leaves", [{"path": [], "type": "int", "dtype": "int65", "shape": []}], Unsupported),
        ("leaves", [{"path": [], "type": "int", "dtype": [], "shape": []}], Corrupt),
        ("leaves", [{"path": [], "type": "int", "dtype": "int8", "shape": [-1]}], Corrupt),
        ("leaves", [{"path": [], "type": "int", "dtype": "int8", "shape": []}], Corrupt),
        ("leaves", [{"path": [], "type": "None", "sharding": 0}], Corrupt),
        ("leaves", [], Corrupt),
        ("stripes", [], Corrupt),
        ("stripes", [{"file": "../p00000.ogds"}], Corrupt),
        ("stripes", [[]], Corrupt),
    ],
    ids=str,
)
def test_manifests_that_say_the_impossible_are_refused(
    item: Path, field: str, value: object, error: type[OgdsError]
) -> None:
    rewrite_manifest(item, **{field: value})
    with pytest.raises(error) as caught:
        reference.read_item(item)
    assert type(caught.value) is error


def rewrite_manifest(item: Path, **changes: object) -> None:
    """Change fields of the manifest, under a checksum that holds."""
    fields = reference.parse_manifest((item / "manifest.json").read_bytes())
    (item / "manifest.json").write_bytes(reference.encode_manifest(fields | changes))


@pytest.mark.parametrize("name", ["uuid", "bytes", "layout_crc32c", "index_crc32c"])
def test_a_stripe_that_differs_from_its_manifest_is_refused(item: Path, name: str) -> None:
    stripes = reference.parse_manifest((item / "manifest.json").read_bytes())["stripes"]
    stripes[1][name] = stripes[1][name] + 1 if name == "bytes" else stripes[1][name][::-1]
    rewrite_manifest(item, stripes=stripes)
    with pytest.raises(Corrupt, match=r"p00001\.ogds"):
        reference.read_item(item)


def shard(leaf: int = 0, first: int = 0, at: int = 0, n: int = 4, cell: int = 4, **kw) -> Shard:
    return Shard(leaf=leaf, first_chunk=first, start=(at,), extent=(n,), chunk_extent=(cell,), **kw)


WHOLE = [shard(), shard(at=4, first=1)]


POOL = [shard(pooled=True), shard(n=2, cell=2, pooled=True, offset_words=2)]


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([shard(), shard(first=1)], "stored twice"),
        ([shard(), shard(at=5, first=1)], "not within the leaf"),
        ([shard(at=2**64 - 2), shard(at=4, first=1)], "not within the leaf"),
        ([shard(), shard(at=4, first=1, leaf=9)], "leaf 9 has no words"),
        ([shard(), shard(at=4, first=1, leaf=2)], "leaf 2 has no words"),
        ([shard(), shard(at=4, first=1, leaf=3)], "not within the leaf"),
        ([shard(), shard(at=4, first=1, leaf=4)], "chunk 1 is uint8, leaf .*'f'.* is not"),
        ([shard(), shard(at=4)], "chunk 0 is claimed twice"),
        ([shard(), shard(at=4, pooled=True)], "chunk 0 is claimed twice"),
        ([shard()], "chunk 1 belongs to no shard"),
        ([shard(), shard(at=4, first=2)], "says 1 chunks of 2"),
        ([shard(n=3, cell=3), shard(at=3, first=1, n=5, cell=5)], "has 4 words, .* says 3"),
        ([*WHOLE, shard(n=0, first=1)], "extent of leaf 0 is 0"),
        ([shard(n=2, cell=2, pooled=True), *WHOLE[1:]], "has 4 words, .* says 2"),
        ([*POOL, *WHOLE[1:]], "leaves a gap or overlaps"),
        ([shard(pooled=True, offset_words=4), *WHOLE[1:]], "leaves a gap or overlaps"),
        ([shard(offset_words=1), *WHOLE[1:]], "offset_words=1.* says 1 chunks"),
        ([shard(n=4, cell=8, pooled=True), *WHOLE[1:]], "pooled=True.* says 1 chunks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layouts_that_do_not_fit_are_refused(
    tmp_path: Path, shards: list[Shard], message: str
) -> None:
    array = np.arange(8, dtype=np.uint8)
    builder = StripeBuilder()
    builder.add_box(0, array, (0,), (4,))
    leaves = [leaf_entry("a", array), leaf_entry("empty", array[:0]), {"path": [], "type": "None"}]
    leaves += [leaf_entry("matrix", array[:0].reshape(0, 4)), leaf_entry("f", array.view("i1"))]

    builder.shards = WHOLE
    write_manifest(tmp_path, leaves[:4], [builder.write(tmp_path)])
    assert same_bits(reference.read_item(tmp_path)[(("k", "a"), ("i", 0))], array)

    builder.shards = shards
    known = 4 + any(shard.leaf == 4 for shard in shards)
    write_manifest(tmp_path, leaves[:known], [builder.write(tmp_path)])
    with pytest.raises(Corrupt, match=message):
        reference.read_item(tmp_path)


@pytest.mark.parametrize(
    ("at", "message"),
    [(0, "expected at 4096"), (28, "expected at 4096"), (56, "frame and index disagree")]
    + [(8, "expected at"), (40, "do not end where the index begins")]
    + [(at, "has .* words, the layout says") for at in (12, 44)]
    + [(at, "frame and index disagree") for at in (16, 20, 24, 26, 48, 52, 58)]
    + [(at, "chunk . is .*, leaf .* is not") for at in (25, 57)],
)
def test_an_index_that_disagrees_under_crcs_that_hold_is_refused(
    item: Path, at: int, message: str
) -> None:
    path = item / "p00001.ogds"  # its two frames hold the end of the kernel
    data = bytearray(path.read_bytes())
    index = len(data) - 64 - 2 * 32
    data[index + at] ^= 1 if at % 32 in (24, 25) else 64
    crc = reference.crc32c(data[index:-64])
    data[-52:-48] = crc.to_bytes(4, "little")
    path.write_bytes(with_footer_crc(data))
    stripes = reference.parse_manifest((item / "manifest.json").read_bytes())["stripes"]
    stripes[1]["index_crc32c"] = f"{crc:08x}"
    rewrite_manifest(item, stripes=stripes)
    with pytest.raises(OgdsError, match=message):
        reference.read_item(item)


def with_footer_crc(data: bytearray) -> bytearray:
    data[-12:-8] = reference.crc32c(data[-64:-12]).to_bytes(4, "little")
    return data


@pytest.mark.parametrize(
    ("at", "message"),
    [(at, "header and footer belong to different stripes") for at in (8, 16, 31, 32)]
    + [(0, "does not end at the footer"), (36, "reserved"), (51, "reserved"), (63, "sealed")],
)
def test_a_footer_that_disagrees_under_a_crc_that_holds_is_refused(
    item: Path, at: int, message: str
) -> None:
    path = item / "p00001.ogds"
    data = bytearray(path.read_bytes())
    data[-64 + at] ^= 64
    path.write_bytes(with_footer_crc(data))
    with pytest.raises(Corrupt, match=message):
        reference.read_item(item)


@pytest.mark.parametrize(
    ("at", "error"),
    [(8, Unsupported), (10, Corrupt), (32, OgdsError), (40, Corrupt), (44, Corrupt), (48, Corrupt)],
)
def test_a_header_that_says_the_impossible_is_refused(
    item: Path, at: int, error: type[OgdsError]
) -> None:
    path = item / "p00001.ogds"
    data = bytearray(path.read_bytes())
    data[at] ^= 2
    data[60:64] = reference.crc32c(data[:60]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(error):
        reference.read_item(item)


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data(), chunk=chunks(max_words=600))
def test_a_stripe_without_its_end_gives_the_frames_that_are_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chunk: tuple[Dtype, np.ndarray]
) -> None:
    dtype, words = chunk
    n_words = words.size // dtype.words_per_element * dtype.words_per_element
    builder = StripeBuilder()
    if n_words:
        array = dtype.elements(words[:n_words], (n_words // dtype.words_per_element,))
        builder.add_box(5, array, (3,), (data.draw(st.integers(1, array.size)),))
    frames_bytes = [len(frame) for frame in builder.frames][:20]
    builder.write(directory := tmp_path_factory.mktemp("stripe"))
    path = directory / "p00000.ogds"
    whole = path.read_bytes()
    kept = data.draw(st.integers(0, len(frames_bytes)))
    end = 4096 + sum(frames_bytes[:kept])
    if kept < len(builder.frames) and data.draw(st.booleans()):
        end += data.draw(st.integers(0, len(builder.frames[kept]) - 1))
    path.write_bytes(whole[:end])
    header, shards, frames = reference.scan_stripe(path)
    assert (header.uuid, header.n_chunks, shards) == (UUID, len(builder.frames), builder.shards)
    assert len(frames) == kept
    for number, (frame_header, decoded) in enumerate(frames):
        assert frame_header.chunk == number
        (box,) = reference.boxes_of(number, shards, decoded.size, dtype.words_per_element, "")
        first = (box.start[0] - 3) * dtype.words_per_element
        np.testing.assert_array_equal(decoded[box.words], words[first : first + decoded.size])


def test_a_scan_ends_at_the_first_damaged_or_foreign_frame(item: Path) -> None:
    path = item / "p00000.ogds"
    data = path.read_bytes()
    assert len(reference.scan_stripe(path)[2]) == 3
    frames = [data.index(b"OGF1")]
    frames += [data.index(b"OGF1", frames[0] + 1)]
    damaged = bytearray(data)
    damaged[frames[1] + 40] ^= 1
    path.write_bytes(damaged)
    assert len(reference.scan_stripe(path)[2]) == 1
    first = data[frames[0] : frames[1]]
    path.write_bytes(data[: frames[1]] + first)
    assert len(reference.scan_stripe(path)[2]) == 1


def test_a_scan_without_header_or_layout_is_refused(item: Path) -> None:
    path = item / "p00000.ogds"
    data = path.read_bytes()
    for at in (0, 20, 61, 70, 4095):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Corrupt):
            reference.scan_stripe(path)
    with pytest.raises(NotFound):
        reference.scan_stripe(item / "p00009.ogds")


@pytest.mark.slow
def test_the_reference_reads_an_item_without_the_native_core_jax_or_orbax(item: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('orbax_gds._native', 'jax', 'orbax'): sys.modules[name] = None\n"
        "from orbax_gds.codecs import reference\n"
        "print(len(reference.read_item(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(item)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
