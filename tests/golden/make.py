"""Write the golden files: `python tests/golden/make.py`.

Golden bytes are read for ever, so what is there is never changed: this adds what is missing. It
also writes the worked example of FORMAT §7.5 between its headings.

Files:
    frames.json: good frames as hex, each with the CRC32C of its words in memory.
    refused.json: malformed frames as hex under CRCs that hold, each with the error it deserves.
    items/NAME/: whole items; items/NAME.json says dtype, shape and CRC32C of each leaf with words.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import example
import numpy as np

import orbax_gds
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder, Shard
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name, dtype_of, words_of

GOLDEN = Path(__file__).parent
FORMAT = GOLDEN.parents[1] / "orbax_gds" / "FORMAT.md"


def noise(dtype: Dtype, n: int, seed: int) -> np.ndarray:
    """Return words that need no library to be made again: a linear congruential generator."""
    state, values = seed * 2654435761 + dtype.id, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        values.append(state >> 11 & (1 << dtype.bits) - 1 if dtype.bits <= 32 else state)
    return np.array(values, np.uint64).astype(dtype.word_dtype)


def narrow(dtype: Dtype, n: int, seed: int) -> np.ndarray:
    """Return words of a split dtype with exponents in a window and now and then an escape."""
    words = noise(dtype, n, seed)
    shift = dtype.bits - 9
    below = np.array([0, 0, 1, 0, 2, 0, 1, 3, 0, 1, 0, 5, 2, 0, 1, 77], np.uint64)
    exponents = (126 - below[noise(dtype_by_name("uint8"), n, seed + 1) % 16]) << np.uint64(shift)
    return (words & ~dtype.word_dtype.type(0xFF << shift)) | exponents.astype(dtype.word_dtype)


def blocks(dtype: Dtype) -> np.ndarray:
    """Return words with a block of zeros, a constant block and a short normal one."""
    constant = np.full(256, noise(dtype, 9, 5)[-1] | 1)
    normal = narrow(dtype, 21, 3) if dtype.split else noise(dtype, 21, 3)
    return np.concatenate([np.zeros(256, dtype.word_dtype), constant, normal])


def frames() -> Iterator[tuple[str, bytes, np.ndarray]]:
    """Yield name, frame and words of every golden frame."""
    for dtype in DTYPES:
        for codec in ("raw", "ladder") if dtype.split else ("raw",):
            for name, words in {
                "plain": narrow(dtype, 37, 1) if dtype.split else noise(dtype, 37, 1),
                "blocks": blocks(dtype),
            }.items():
                frame = reference.encode_frame(
                    words, dtype, codec=codec, chunk=5, block_map=name == "blocks"
                )
                yield f"{dtype.name} {codec} {name}", frame, words
    bf16 = dtype_by_name("bfloat16")
    for name, ladder in {
        "one level": Ladder(emax=130, widths=(4,), symbols=tuple(range(16))),
        "eight levels": Ladder(emax=126, widths=(1,) * 7 + (4,), symbols=tuple(range(16))),
        "emax wraps": Ladder(emax=3, widths=(2, 1, 4), symbols=tuple(range(15, -1, -1))),
    }.items():
        words = narrow(bf16, 40, 7)
        frame = reference.encode_frame(words, bf16, codec="ladder", ladder=ladder)
        yield f"bfloat16 ladder {name}", frame, words
    zeros = np.zeros(300, np.uint16)
    yield (
        "no normal word",
        reference.encode_frame(zeros, bf16, codec="ladder", block_map=True),
        zeros,
    )
    long = np.resize(narrow(bf16, 16, 9), 32768 + 5)
    yield "two sub-blocks", reference.encode_frame(long, bf16, codec="ladder"), long


def resealed(frame: bytes, changes: dict[int, int], n_payload: int | None = None) -> bytes:
    """Return the frame with bytes changed or its payload cut or lengthened, under fresh CRCs."""
    changed = bytearray(frame)
    for at, value in changes.items():
        changed[at] = value
    if n_payload is not None:
        payload = bytes(changed[32 : 32 + n_payload]).ljust(n_payload, b"\0")
        changed[32:] = payload.ljust(-(-(32 + n_payload) // 64) * 64 - 32, b"\0")
        changed[12:16] = n_payload.to_bytes(4, "little")
        changed[16:20] = len(changed).to_bytes(4, "little")
    changed[24:28] = reference.crc32c(changed[32:]).to_bytes(4, "little")
    changed[28:32] = reference.crc32c(changed[:28]).to_bytes(4, "little")
    return bytes(changed)


def refused() -> Iterator[tuple[str, bytes, str]]:
    """Yield name, bytes and expected error of every malformed frame."""
    nibbles = reference.encode_frame(noise(dtype_by_name("uint4"), 5, 1), dtype_by_name("uint4"))
    yield "empty", b"", "Truncated"
    yield "half a header", nibbles[:31], "Truncated"
    yield "half a frame", nibbles[:63], "Truncated"
    yield "magic", b"OGF2" + nibbles[4:], "Corrupt"
    yield "header crc", nibbles[:28] + b"\0\0\0\0" + nibbles[32:], "Corrupt"
    yield "payload crc", nibbles[:32] + b"\xff" + nibbles[33:], "Corrupt"
    yield "codec 2", resealed(nibbles, {4: 2}), "Unsupported"
    yield "ladder without a split", resealed(nibbles, {4: 1}), "Corrupt"
    yield "dtype 0", resealed(nibbles, {5: 0}), "Unsupported"
    yield "dtype 31", resealed(nibbles, {5: 31}), "Unsupported"
    yield "flag 1", resealed(nibbles, {6: 2}), "Corrupt"
    yield "flag 15", resealed(nibbles, {7: 0x80}), "Corrupt"
    yield "no words", resealed(nibbles, {8: 0}), "Corrupt"
    yield "payload past the frame", resealed(nibbles, {12: 33}), "Corrupt"
    yield "frame of 96 bytes", resealed(nibbles + bytes(32), {16: 96}), "Corrupt"
    yield "payload short", resealed(nibbles, {}, 2), "Truncated"
    yield "payload long", resealed(nibbles, {}, 4), "Corrupt"
    yield "padding not zero", resealed(nibbles, {35: 1}), "Corrupt"
    yield "raw unused bits", resealed(nibbles, {34: nibbles[34] | 0x10}), "Corrupt"

    mapped = reference.encode_frame(
        blocks(dtype_by_name("int4")), dtype_by_name("int4"), block_map=True
    )
    yield "block code 3", resealed(mapped, {32: mapped[32] | 3}), "Corrupt"
    yield "map unused bits", resealed(mapped, {32: mapped[32] | 0x40}), "Corrupt"
    yield "constant above its bits", resealed(mapped, {33: mapped[33] | 0x10}), "Corrupt"
    yield "payload after a map long", resealed(mapped, {}, 2 + 11 + 1), "Corrupt"
    yield "map cut", resealed(mapped, {}, 0), "Truncated"
    yield "constant cut", resealed(mapped, {}, 1), "Truncated"

    yield from refused_ladders()


def refused_ladders() -> Iterator[tuple[str, bytes, str]]:
    """Yield the malformed ladder payloads: 20 words in three levels, from byte 32 on.

    Header 32 to 43, counts 44 to 47, escapes 48, s plane 50 to 69, level 0 from 70: 3 bytes.
    """
    bf16 = dtype_by_name("bfloat16")
    ladder = Ladder(emax=126, widths=(1, 1, 4), symbols=tuple(range(16)))
    frame = reference.encode_frame(example.WORDS, bf16, codec="ladder", ladder=ladder)
    n_payload = int.from_bytes(frame[12:16], "little")
    level_1, held = 73, int.from_bytes(frame[44:46], "little")
    level_2 = level_1 + -(-held // 8)
    yield "ladder reserved byte", resealed(frame, {33: 1}), "Corrupt"
    yield "ladder without levels", resealed(frame, {34: 0}), "Corrupt"
    yield "ladder without width 4", resealed(frame, {34: 0b0101}), "Corrupt"
    yield "ladder level after width 4", resealed(frame, {34: 0b01_11_01_01}), "Corrupt"
    yield "ladder gap in the levels", resealed(frame, {34: 0b11_00_01_01}), "Corrupt"
    yield "ladder two width 4", resealed(frame, {34: 0b11_11_01}), "Corrupt"
    yield "ladder symbols", resealed(frame, {36: 0x00}), "Corrupt"
    yield "ladder count", resealed(frame, {44: held + 1}), "Corrupt"
    yield "ladder count of nothing", resealed(frame, {44: 0}), "Corrupt"
    yield "ladder count 65535", resealed(frame, {44: 255, 45: 255}), "Corrupt"
    yield "ladder escapes", resealed(frame, {48: frame[48] + 1}), "Corrupt"
    yield "ladder no escapes", resealed(frame, {48: 0}), "Corrupt"
    yield "ladder level 0", resealed(frame, {70: frame[70] ^ 1}), "Corrupt"
    rank_17 = {level_2 + at: 255 for at in range(n_payload + 32 - level_2 - 1)}
    yield "ladder rank above 15", resealed(frame, rank_17), "Corrupt"
    for n in (0, 11, 12, 17, 18, 37, 38, n_payload - 1):
        yield f"ladder cut to {n} bytes", resealed(frame, {}, n), "Truncated"
    yield "ladder long", resealed(frame, {}, n_payload + 1), "Corrupt"


def items() -> Iterator[tuple[str, Path]]:
    """Yield name and directory of the golden items, writing each of ours that is missing.

    Any other item can be added by copying its directory to `items/`.
    """
    for name, write_item in {"reference": write_reference_item, "saved": write_saved_item}.items():
        if not (GOLDEN / "items" / name).exists():
            write_item(GOLDEN / "items" / name)
    yield from ((path.name, path) for path in sorted((GOLDEN / "items").iterdir()) if path.is_dir())


def write_saved_item(directory: Path) -> None:
    """Save a tree with every dtype and every type of leaf by the package itself."""
    tree: dict[str, object] = {
        dtype.name: words_as(dtype, (3, 5) if dtype.id % 3 else ()) for dtype in DTYPES
    }
    tree |= {"int": 2**70, "float": -0.0, "complex": 1j, "bool": True, "str": "é", "bytes": b"\0"}
    tree |= {"none": None, "dict": {}, "list": [[], ()], "empty": np.zeros((0, 2), np.float32)}
    bf16 = dtype_by_name("bfloat16")
    tree["matrix"] = bf16.elements(narrow(bf16, 40 * 50, 31), (40, 50))
    orbax_gds.save(directory, tree)


def words_as(dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return elements of this shape with arbitrary bits, those of a bool 0 or 1."""
    n_words = int(np.prod(shape)) * dtype.words_per_element
    words = noise(dtype, n_words, 41) & (1 if dtype.name == "bool" else ~dtype.word_dtype.type(0))
    return dtype.elements(words, shape)


def write_reference_item(directory: Path) -> None:
    """Write an item of two stripes: a leaf in both, a grid, a pool, a complex 0-d leaf."""
    directory.mkdir(parents=True)
    leaves, stripes = [], [([], []), ([], [])]

    def leaf(name: str, array: np.ndarray) -> int:
        path = [["k", "params"], ["k", name]]
        entry = {"path": path, "type": "jax.Array", "dtype": array.dtype.name}
        leaves.append(entry | {"shape": list(array.shape)})
        return len(leaves) - 1

    def store(stripe: int, shards: list[Shard], array: np.ndarray, **kw) -> None:
        frames = stripes[stripe][1]
        stripes[stripe][0].extend(shards)
        frames.append(
            reference.encode_frame(words_of(array), dtype_of(array.dtype), chunk=len(frames), **kw)
        )

    bf16, f32 = dtype_by_name("bfloat16"), dtype_by_name("float32")
    kernel = bf16.elements(narrow(bf16, 6 * 40, 21), (6, 40))
    number = leaf("kernel", kernel)
    box = {"leaf": number, "extent": (3, 40), "chunk_extent": (2, 40)}
    store(0, [Shard(first_chunk=0, start=(0, 0), **box)], kernel[:2], codec="ladder")
    store(0, [], kernel[2:3], codec="ladder")
    store(1, [Shard(first_chunk=0, start=(3, 0), **box)], kernel[3:5], codec="ladder")
    store(1, [], kernel[5:], codec="raw")
    scale = f32.elements(narrow(f32, 5, 22), (5,))
    offset = f32.elements(narrow(f32, 1, 23), ())
    pool = [
        Shard(
            leaf=leaf(name, array),
            first_chunk=2,
            start=(0,) * array.ndim,
            extent=array.shape,
            chunk_extent=array.shape,
            pooled=True,
            offset_words=at,
        )
        for name, array, at in (("scale", scale, 0), ("offset/..", offset, 5))
    ]
    store(0, pool, np.append(scale, offset))
    phase = dtype_by_name("complex64").elements(narrow(f32, 2, 24), (1,)).reshape(())
    number = leaf("phase", phase)
    whole = {"leaf": number, "start": (), "extent": (), "chunk_extent": ()}
    store(1, [Shard(first_chunk=2, **whole)], phase, codec="ladder", align_bytes=4096)
    leaf("empty", np.zeros((0, 3), np.int8))
    leaves.append({"path": [["k", "none"]], "type": "None"})

    entries = [
        reference.write_stripe(
            directory, shards, frames, uuid=bytes(range(process, process + 16)), process=process
        )
        for process, (shards, frames) in enumerate(stripes)
    ]
    fields = {"format": 1, "requires": [], "writer": "reference", "leaves": leaves}
    fields |= {"shardings": [], "stripes": entries, "sidecars": {}, "options": {}}
    (directory / "manifest.json").write_bytes(reference.encode_manifest(fields))


def described(array: np.ndarray) -> dict[str, object]:
    """Return what a golden item says of a leaf."""
    crc = crc_of(words_of(array))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "crc32c": crc}


def write() -> None:
    """Write every golden file and entry that is missing, and the worked example."""
    good = {
        name: {"frame": frame.hex(), "n_words": words.size, "words_crc32c": crc_of(words)}
        for name, frame, words in frames()
    }
    bad = {name: {"frame": frame.hex(), "error": error} for name, frame, error in refused()}
    for file, entries in (("frames.json", good), ("refused.json", bad)):
        path = GOLDEN / file
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(entries | kept, indent=0) + "\n")
    for name, directory in items():
        path = directory.with_name(f"{name}.json")
        if not path.exists():
            leaves = {
                json.dumps(path): described(leaf)
                for path, leaf in reference.read_item(directory).items()
            }
            path.write_text(json.dumps(leaves, indent=1) + "\n")
    before, _, rest = FORMAT.read_text().partition(example.HEADING)
    _, _, after = rest.partition(example.NEXT_HEADING)
    FORMAT.write_text(before + example.section() + example.NEXT_HEADING + after)


def crc_of(words: np.ndarray) -> str:
    """Return the CRC32C of the words as they lie in memory, as eight hexadecimal digits."""
    return f"{reference.crc32c(words.tobytes()):08x}"


if __name__ == "__main__":
    write()
