"""Write the golden files: `cd tests && python -m golden.make`.

Golden bytes are read for ever, so what is there is never changed: this adds what is missing. It
also writes the worked examples of FORMAT §7.5, §7.10 and §7.12 between their headings.

Files:
    frames.json: good frames as hex, each with the CRC32C of its words in memory.
    deltas.json: good frames that need a base.
    refused.json: malformed frames as hex under CRCs that hold, each with the error it deserves.
    items/NAME/: whole items; items/NAME.json says dtype, shape and CRC32C of each leaf with words.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from golden import example, example_codings, example_delta
from golden.delta_item import write_delta_item
from golden.deltas import deltas
from golden.derived_items import write_derived_item, write_saved_derived_item
from golden.frames import frames
from golden.kinds_item import write_kinds_item
from golden.refused import refused
from golden.saved_items import write_coded_item, write_saved_item
from golden.words import narrow

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.dtypes import dtype_by_name, dtype_of, words_of

GOLDEN = Path(__file__).parent
FORMAT = GOLDEN.parents[1] / "orbax_gds" / "FORMAT.md"


def items() -> Iterator[tuple[str, Path]]:
    """Yield name and directory of the golden items, writing each of ours that is missing.

    Any other item can be added by copying its directory to `items/`.
    """
    writers = {
        "reference": write_reference_item,
        "saved": write_saved_item,
        "saved auto": partial(write_coded_item, codec="auto"),
        "saved max": partial(write_coded_item, codec="max"),
        "derived": write_derived_item,
        "derived saved": write_saved_derived_item,
        "kinds": write_kinds_item,
        "delta": write_delta_item,
    }
    for name, write_item in writers.items():
        if not (GOLDEN / "items" / name).exists():
            write_item(GOLDEN / "items" / name)
    yield from ((path.name, path) for path in sorted((GOLDEN / "items").iterdir()) if path.is_dir())


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
    based = {
        name: {
            "frame": frame.hex(),
            "words_crc32c": crc_of(words),
            "base": base.words.tobytes().hex(),
            "base_crc32c": f"{base.payload_crc32c:08x}",
        }
        for name, frame, words, base in deltas()
    }
    files = {"frames.json": good, "deltas.json": based, "refused.json": bad}
    for file, entries in files.items():
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
    for made in (example, example_codings, example_delta):
        before, heading, rest = FORMAT.read_text().partition(made.HEADING)
        if not heading:
            before, _, rest = before.partition(made.NEXT_HEADING)
            rest = made.NEXT_HEADING + rest
        _, _, after = rest.partition(made.NEXT_HEADING)
        FORMAT.write_text(before + made.section() + made.NEXT_HEADING + after)


def crc_of(words: np.ndarray) -> str:
    """Return the CRC32C of the words as they lie in memory, as eight hexadecimal digits."""
    return f"{reference.crc32c(words.tobytes()):08x}"


if __name__ == "__main__":
    write()
