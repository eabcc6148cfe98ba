"""FORMAT.md, the code's constants and the golden bytes say the same."""

import json
import re
import struct
from importlib.resources import files
from pathlib import Path

import jax
import numpy as np
import pytest
from golden import example, example_codings, example_delta
from isas import decode_on_every_isa

import orbax_gds
from orbax_gds import _native, errors, manifest, stripe
from orbax_gds.codecs import (
    CODECS,
    payload,
    reference,
    reference_ans,
    reference_ans_table,
    reference_delta,
    reference_frame,
    reference_huffman,
    reference_ladder,
    reference_modelled,
    reference_prediction,
    reference_stripe,
    reference_zstd,
)
from orbax_gds.derived import FEATURE, Rule
from orbax_gds.dtypes import DTYPES, SPLITS, dtype_by_id, dtype_by_name, dtype_of, words_of
from orbax_gds.stripe_specs import DELTA

DASH = "\N{EN DASH}"
GOLDEN = Path(__file__).parent / "golden"
FORMAT = files("orbax_gds").joinpath("FORMAT.md").read_text()


def section(number: str) -> str:
    """Return the text below the heading with this number, up to the next heading."""
    (text,) = re.findall(rf"^#+ {re.escape(number)}\.? .*?\n(.*?)(?=^#|\Z)", FORMAT, re.M | re.S)
    return text


def tables(number: str) -> list[list[list[str]]]:
    """Return the rows of cells, without their heads, of the tables of a section."""
    found = re.findall(r"((?:^\|.*\n)+)", section(number), re.M)
    rows = [[line.strip("| ").split(" | ") for line in table.splitlines()] for table in found]
    return [table[2:] for table in rows]


def fields_of(layout: struct.Struct) -> list[tuple[int, int]]:
    """Return offset and size of each field of a struct."""
    fields, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        size = int(count or 1) if code == "s" else struct.calcsize(f"<{code}")
        fields.append((at, size))
        at += size
    assert at == layout.size
    return fields


def offsets_in(table: list[list[str]]) -> list[tuple[int, int]]:
    return [(int(row[0]), int(row[1])) for row in table if row[0].isdigit() and row[1].isdigit()]


def hex_in(text: str) -> bytes:
    (found,) = re.findall(r"`((?:[0-9A-F]{2} )+[0-9A-F]{2})`", text)
    return bytes.fromhex(found)


@pytest.mark.parametrize(
    ("number", "table", "layout"),
    [
        ("4.1", 0, reference_stripe.HEADER),
        ("4.3", 0, reference_stripe.INDEX),
        ("4.4", 0, reference_stripe.FOOTER),
        ("6", 0, reference_frame.FRAME),
        ("7.4", 0, reference_ladder.LADDER),
        ("7.6", 0, reference_modelled.MODELLED),
        ("7.7", 1, reference_ans.ANS),
        ("7.11", 0, reference_delta.DELTA),
    ],
)
def test_tables_of_fields_are_those_of_the_code(
    number: str, table: int, layout: struct.Struct
) -> None:
    assert offsets_in(tables(number)[table]) == fields_of(layout)


def test_the_layout_table_is_that_of_the_code() -> None:
    sections, shards, _ = tables("4.2")
    assert offsets_in(sections) == fields_of(reference_stripe.SECTION)
    assert [tuple(map(int, row[:2])) for row in shards[:5]] == fields_of(reference_stripe.SHARD)
    assert [row[0] for row in shards[5:]] == ["24", "24 + 8 r", "24 + 16 r"]


def test_the_writer_has_the_same_records_as_the_reference() -> None:
    record = stripe.RECORD
    found = [(record.fields[name][1], record.fields[name][0].itemsize) for name in record.names]
    assert found == fields_of(reference_stripe.INDEX)
    assert payload._HEADER.size == reference_frame.FRAME.size - 4
    assert reference_frame.FRAME.size == payload._HEADER_BYTES
    assert reference_stripe.HEADER.size == stripe.HEADER_BYTES
    assert reference_stripe.FOOTER.size == stripe.FOOTER_BYTES
    assert reference_stripe.INDEX.size == stripe.RECORD_BYTES
    assert stripe.PAGE_BYTES == reference_stripe.FIRST_FRAME_ALIGN


def test_magics_are_those_of_the_code() -> None:
    assert hex_in(tables("4.1")[0][0][2]) == reference_stripe.HEADER_MAGIC == stripe.MAGIC
    assert hex_in(tables("4.4")[0][-1][2]) == reference_stripe.FOOTER_MAGIC == stripe.END_MAGIC
    assert hex_in(tables("6")[0][0][2]) == reference_frame.FRAME_MAGIC


def test_the_dtype_table_is_that_of_the_code() -> None:
    (table,) = tables("5")
    rows = [
        [
            str(dtype.id),
            dtype.name,
            str(dtype.bits),
            str(dtype.container_bytes),
            str(dtype.words_per_element),
            dtype.split or DASH,
        ]
        for dtype in DTYPES
    ]
    assert table == rows


def test_the_table_of_splits_is_that_of_the_code() -> None:
    (table,) = tables("7.2")
    found = {
        row[0]: (*map(int, row[1:4]), sum(int(w) for w in row[5].split(", ") if w != DASH))
        for row in table
    }
    assert found == {
        name: (split.sign_bits, split.exponent_bits, split.mantissa_bits, split.rest_bits)
        for name, split in SPLITS.items()
    }
    assert [int(row[4]) for row in table] == [split.rest_bits for split in SPLITS.values()]
    for dtype in DTYPES:
        split = SPLITS.get(dtype.split or "")
        assert split is None or split.rest_bits + split.exponent_bits == dtype.bits


def test_every_dtype_has_its_numpy_type() -> None:
    for dtype in DTYPES:
        assert dtype_by_id(dtype.id) is dtype_by_name(dtype.name) is dtype_of(dtype.numpy_dtype)
        assert dtype.numpy_dtype.itemsize == dtype.element_bytes
        elements = np.zeros((2, 3), dtype.numpy_dtype)
        assert words_of(elements).shape == (6 * dtype.words_per_element,)
        assert dtype.elements(words_of(elements), (2, 3)).dtype == dtype.numpy_dtype


def test_dtypes_outside_the_table_are_refused_by_name() -> None:
    for unknown in ("longdouble", "datetime64[s]", "U3", "O", [("a", "i4")]):
        with pytest.raises(errors.Unsupported, match="cannot be stored"):
            dtype_of(np.dtype(unknown))
    with pytest.raises(errors.Unsupported, match="big-endian"):
        dtype_of(np.dtype(">f4"))
    with pytest.raises(ValueError, match="not C-contiguous"):
        words_of(np.zeros((2, 3)).T)


def test_native_knows_the_dtypes_of_the_table_and_no_other() -> None:
    known = {dtype.id: dtype for dtype in DTYPES}
    for number in range(256):
        if number not in known:
            with pytest.raises(ValueError, match=str(number)):
                _native.max_frame_bytes(1, number)
            continue
        words = np.ones(9, known[number].word_dtype)
        frame = _native.encode_frame(words, number, codec="raw", block_map=False)
        info = _native.frame_info(frame)
        assert (info["dtype"], info["payload_bytes"]) == (number, -(-9 * known[number].bits // 8))


def test_the_registries_are_those_of_the_code() -> None:
    codecs = {int(row[0]): row[1] for row in tables("7")[0]}
    assert codecs == reference_frame.CODECS == {codec.id: codec.name for codec in CODECS}
    for codec in CODECS:
        for dtype in DTYPES:
            assert codec.supports(dtype) == reference.supports(codec.name, dtype)
    (registry,) = tables("9")
    given = {row[0]: row[1] for row in registry}
    assert given["codec"] == ", ".join(f"{number} {name}" for number, name in codecs.items())
    assert given["`requires`"] == "`derived` (§4.2), `kinds` (§3.1), `delta` (§3.5)"
    known = {FEATURE, manifest.KINDS, DELTA}
    assert reference.FEATURES == manifest.KNOWN_REQUIRES == known
    mapped, delta = reference_frame.BLOCK_MAP_FLAG, reference_frame.DELTA_FLAG
    flags = f"bit {mapped.bit_length() - 1} block map, bit {delta.bit_length() - 1} delta"
    assert given["frame flag"] == flags
    assert delta == stripe.DELTA_FLAG
    pooled = f"bit {reference_stripe.POOLED_FLAG.bit_length() - 1} pooled"
    derived = f"bit {reference_stripe.DERIVED_FLAG.bit_length() - 1} derived"
    assert given["shard flag"] == f"{pooled}, {derived}"
    rules = ", ".join(f"{number} {name}" for number, name in reference_stripe.RULES.items())
    assert given["rule of a derived shard"] == rules
    assert rules == ", ".join(f"{rule} {rule.name.lower()}" for rule in Rule)
    assert [row[0] for row in tables("4.2")[2]] == rules.split(", ")
    reserved = {0, 31, *range(34, 256)}
    assert dict(row[::2] for row in registry)["dtype"] == f"0, 31, 34{DASH}255"
    assert {dtype.id for dtype in DTYPES} == set(range(256)) - reserved


def test_flags_and_splits_of_the_codings_are_those_of_the_code() -> None:
    modelled, ans = tables("7.6")[0][0][2], tables("7.7")[1][0][2]
    flags = [reference_prediction.PREDICTION_FLAG, reference_prediction.NO_SIGNS_FLAG]
    bits = [flag.bit_length() - 1 for flag in flags]
    assert [1 << bit for bit in bits] == flags
    assert f"bit {bits[0]} = prediction, bit {bits[1]} = sign slot; others 0" in modelled
    assert f"bit {bits[0]} = prediction (§7.6), bit {bits[1]} = no signs" in ans
    modelled_splits = list(dict.fromkeys(str(d.split) for d in DTYPES if d.is_modelled))
    splits = " and ".join(", ".join(modelled_splits).rsplit(", ", 1))
    assert f"for the splits {splits}" in tables("7")[0][2][2]
    assert tables("7.7")[0][0][0] == ", ".join(modelled_splits)


def test_the_limits_are_those_of_the_code() -> None:
    text = section("8.2")
    assert f"Rank ≤ {reference_stripe.MAX_RANK}" in text
    assert manifest.MAX_RANK == 64
    assert f"keys in a path ≤ {manifest.MAX_PATH_KEYS}" in text
    assert "other than 0 < 2⁵⁸" in text
    assert manifest.MAX_ELEMENTS == 2**58 - 1
    assert "manifest < 2³¹ bytes" in text
    assert manifest.MAX_MANIFEST_BYTES == 2**31 - 1
    assert "chunk ≤ 2²⁸ words" in text
    assert reference_frame.MAX_CHUNK_WORDS == 2**28
    assert "frame < 2³¹ bytes" in text
    assert reference_frame.MAX_FRAME_BYTES == 2**31 - 1
    assert f"{reference_frame.BLOCK_WORDS} words" in section("7.1")
    assert f"{reference_ladder.SUB_BLOCK_WORDS} words" in section("7.4")
    assert f"{reference_ladder.SUB_BLOCK_WORDS} words" in section("7.7")
    assert f"{reference_ladder.SUB_BLOCK_WORDS} words" in section("7.9")
    assert f"code of 1 to {reference_huffman.MAX_CODE_BITS} bits" in section("7.9")
    assert f"a header of {reference_huffman.LENGTHS_BYTES} bytes" in section("7.9")
    assert f"table of {reference_ans_table.N_STATES} states" in section("7.7")
    assert f"+ {reference_ans_table.STEP}) mod {reference_ans_table.N_STATES}" in section("7.7")
    assert f"window above {reference_zstd.MAX_WINDOW_BYTES >> 20} MiB" in section("7.8")


def test_the_manifest_has_the_fields_of_the_tables() -> None:
    for number, kind in {
        "3": manifest.Pending,
        "3.1": manifest.LeafSpec,
        "3.3": manifest.StripeSpec,
    }.items():
        names = {row[0].strip("`") for row in tables(number)[0]} - {"crc32c"}
        assert names == set(kind.__struct_fields__)


def test_stripe_names_are_those_of_the_document() -> None:
    assert f"`{stripe.file_name(0)}`, `{stripe.file_name(1)}`" in section("2")


# --- FORMAT §7.5, §7.10, §7.12 and the golden bytes -----------------------------------------------


def test_the_worked_examples_are_what_the_reference_writes() -> None:
    assert example.section() == example.HEADING + section("7.5")
    assert example_codings.section() == example_codings.HEADING + section("7.10")
    assert example_delta.section() == example_delta.HEADING + section("7.12")


def frames_printed(number: str) -> list[bytes]:
    """Return the frames of the worked examples of a section, put together from its tables."""
    frames = []
    for table in tables(number):
        if table[0][0] == "0":
            frame = b""
            for offset, digits, meaning in table:
                assert int(offset) == len(frame)
                zeros = re.fullmatch(r"(\d+) zeros", meaning)
                text = digits.strip("`")
                frame += bytes(int(zeros[1])) if zeros else bytes.fromhex(text)
            frames.append(frame)
    return frames


def test_the_worked_examples_decode_to_their_words() -> None:
    ladder, mapped = frames_printed("7.5")
    words = np.array([int(word, 16) for word in tables("7.5")[0][0][1].split()], np.uint16)
    nibbles = np.array([0] * 256 + [7] * 256 + [1, 2, 3, 4, 5, 15, 0], np.uint8)
    modelled, ans = frames_printed("7.10")
    positive = np.array([int(word, 16) for word in tables("7.10")[0][0][1].split()], np.uint32)
    ones = np.array([int(word, 16) for word in tables("7.10")[2][0][1].split()], np.uint16)
    for frame, expected in ((ladder, words), (mapped, nibbles), (modelled, positive), (ans, ones)):
        native = decode_on_every_isa(frame, expected.size, expected.dtype)
        np.testing.assert_array_equal(native, expected)
        np.testing.assert_array_equal(reference.decode_frame(frame)[1], expected)


def test_the_worked_delta_decodes_to_its_words_from_the_frame_that_is_its_base() -> None:
    (frame,) = frames_printed("7.12")
    base, expected = (
        np.array([int(word, 16) for word in row[1].split()], np.uint16)
        for row in tables("7.12")[0][:2]
    )
    header, words = reference.decode_frame(frames_printed("7.5")[0])
    np.testing.assert_array_equal(words, base)
    of_base = reference.Base(words=words, payload_crc32c=header.payload_crc32c)
    np.testing.assert_array_equal(reference.decode_frame(frame, base=of_base)[1], expected)
    native = decode_on_every_isa(
        frame, 20, words.dtype, base=words, base_crc32c=header.payload_crc32c
    )
    np.testing.assert_array_equal(native, expected)


GOOD = json.loads((GOLDEN / "frames.json").read_text())
DELTAS = json.loads((GOLDEN / "deltas.json").read_text())
REFUSED = json.loads((GOLDEN / "refused.json").read_text())


@pytest.mark.parametrize("dtype", sorted({name.split()[0] for name in GOOD}))
def test_golden_frames_are_read_for_ever(dtype: str) -> None:
    for name in (name for name in GOOD if name.split()[0] == dtype):
        golden = GOOD[name]
        frame = bytes.fromhex(golden["frame"])
        header, words = reference.decode_frame(frame)
        assert f"{_native.crc32c(words):08x}" == golden["words_crc32c"], name
        native = decode_on_every_isa(frame, golden["n_words"], header.dtype.word_dtype)
        assert f"{_native.crc32c(native):08x}" == golden["words_crc32c"], name


def test_every_dtype_and_coding_has_golden_frames() -> None:
    for dtype in DTYPES:
        for codec in CODECS:
            if codec.name == "delta":
                assert f"{dtype.name} delta" in DELTAS
            elif codec.supports(dtype):
                assert {f"{dtype.name} {codec.name} {kind}" for kind in ("plain", "blocks")} <= set(
                    GOOD
                )


@pytest.mark.parametrize("error", sorted({refused["error"] for refused in REFUSED.values()}))
def test_golden_refusals_are_refused_for_ever(error: str) -> None:
    widths = {dtype.id: dtype.word_dtype for dtype in DTYPES}
    for name in (name for name in REFUSED if REFUSED[name]["error"] == error):
        frame = bytes.fromhex(REFUSED[name]["frame"])
        with pytest.raises(errors.OgdsError) as caught:
            pytest.fail(f"{name}: {reference.decode_frame(frame)}")
        assert type(caught.value).__name__ == error, name
        word_dtype = widths.get(frame[5] if len(frame) > 5 else -1, np.dtype(np.uint8))
        for n_words in (5, 20, 533):
            assert decode_on_every_isa(frame, n_words, word_dtype) is None, name


def test_golden_items_hold_every_coding_a_derived_leaf_and_a_chain() -> None:
    codecs, rules, deltas = set(), set(), set()
    for path in (GOLDEN / "items").rglob("*.ogds"):
        with reference_stripe.open_stripe(path) as file:
            held = reference_stripe.read_stripe(file, str(path))
        codecs |= {record.codec for record in held.records}
        rules |= {shard.rule for shard in held.shards}
        is_base = path.parent.name == "base"
        flag = reference_frame.DELTA_FLAG
        deltas |= {(is_base, bool(record.flags & flag)) for record in held.records}
    assert codecs == reference_frame.CODECS.keys()
    assert reference_stripe.RULES.keys() & rules
    assert len(deltas) == 4  # items and bases have frames that are deltas, and others


ITEMS = sorted((GOLDEN / "items").glob("*.json"))


@pytest.mark.parametrize("path", ITEMS, ids=lambda path: path.stem)
def test_golden_items_are_read_for_ever(path: Path) -> None:
    leaves = reference.read_item(path.with_suffix(""))
    found = {
        json.dumps(leaf_path): {
            "dtype": leaf.dtype.name,
            "shape": list(leaf.shape),
            "crc32c": f"{reference.crc32c(words_of(leaf).tobytes()):08x}",
        }
        for leaf_path, leaf in leaves.items()
    }
    assert found == json.loads(path.read_text())


@pytest.mark.parametrize("path", ITEMS, ids=lambda path: path.stem)
def test_golden_items_restore_bit_for_bit(path: Path) -> None:
    restored = orbax_gds.restore(path.with_suffix(""))
    for leaf_path, leaf in reference.read_item(path.with_suffix("")).items():
        value = restored
        for _, key in leaf_path:
            value = value[key]
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            words = words_of(np.asarray(value))
            np.testing.assert_array_equal(words, words_of(leaf), err_msg=str(leaf_path))
    assert orbax_gds.verify(path.with_suffix("")) == []
