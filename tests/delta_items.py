"""Items whose frames are deltas, made of full ones: what a writer of deltas may write."""

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from orbax_gds import _native
from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds.commit import read_manifest
from orbax_gds.drivers import open_driver
from orbax_gds.dtypes import dtype_by_id
from orbax_gds.stripe_file import StripeFile, open_stripe
from orbax_gds.stripe_specs import DELTA, BaseSpec, StripeSpec, base_file


def follow(
    items: Sequence[Path],
    *,
    linked: bool = True,
    is_delta: Callable[[int, int], bool] = lambda step, chunk: True,
) -> None:
    """Code full items of one tree anew, each but the first as deltas of the one before.

    Args:
        items: directories, in the order of the steps.
        linked: whether the bases get hard links in the items that follow from them.
        is_delta: whether the frame of a chunk may be a delta, by number of the step and chunk;
            one that does not pay is none anyway.
    """
    before: list[tuple[StripeSpec, list[np.ndarray], np.ndarray, Path]] = []
    entries: dict[str, StripeSpec] = {}
    paths: dict[str, Path] = {}
    for step, item in enumerate(items):
        manifest = read_manifest(item)
        now, specs = [], []
        for number, spec in enumerate(manifest.stripes):
            path = item / spec.file
            opened = open_stripe(open_driver("buffered", item), path, spec)
            words = _words(opened)
            opened.file.close()
            if step:
                base_spec, base_words, base_records, _ = before[number]
                frames = [
                    _native.encode_frame(
                        own,
                        int(record["dtype"]),
                        chunk=chunk,
                        base=base if is_delta(step, chunk) else None,
                        base_crc32c=int(base_record["payload_crc32c"]),
                    )
                    for chunk, (own, record, base, base_record) in enumerate(
                        zip(words, opened.records, base_words, base_records, strict=True)
                    )
                ]
                spec = _write(path, opened, frames, base_spec.uuid)
            entries[spec.uuid], paths[spec.uuid] = spec, path
            specs.append(spec)
            now.append((spec, words, _records(path, spec), path))
        before = now
        _publish(item, manifest, specs, entries, paths, linked)


def _words(opened: StripeFile) -> list[np.ndarray]:
    words = []
    for record in opened.records:
        dtype = dtype_by_id(int(record["dtype"]))
        out = np.empty(int(record["n_words"]), dtype.word_dtype)
        frame = stripes.read_block(opened.file, int(record["offset"]), int(record["frame_bytes"]))
        assert _native.decode_frame(frame, out) == 0
        words.append(out)
    return words


def _records(path: Path, spec: StripeSpec) -> np.ndarray:
    opened = open_stripe(open_driver("buffered", path.parent), path, spec)
    opened.file.close()
    return opened.records


def _write(path: Path, opened: StripeFile, frames: list[bytes], base: str) -> StripeSpec:
    """Write a stripe anew, as a new file, and return its entry."""
    uuid = os.urandom(16)
    head = path.read_bytes()[: stripes.HEADER_BYTES]
    header = stripes.decode_header(head, str(path))
    data = stripes.encode_head(
        process=header.process, uuid=uuid, layout=opened.layout, n_chunks=len(frames)
    )
    records = np.zeros(len(frames), stripes.RECORD)
    for row, frame in zip(records, frames, strict=True):
        fields = np.frombuffer(frame, "<u4", 8)
        row["offset"], row["frame_bytes"] = len(data), fields[4]
        row["n_words"], row["payload_bytes"], row["payload_crc32c"] = fields[[2, 3, 6]]
        row["codec"], row["dtype"] = frame[4], frame[5]
        row["flags"] = int.from_bytes(frame[6:8], "little")
        data += frame
    index, layout_crc = records.tobytes(), _native.crc32c(opened.layout)
    footer = stripes.encode_footer(
        index_at=len(data), index=index, uuid=uuid, layout_crc32c=layout_crc
    )
    path.unlink()  # other items may have a link to it
    path.write_bytes(data + index + footer)
    return StripeSpec(
        file=path.name,
        uuid=uuid.hex(),
        bytes=len(data + index + footer),
        layout_crc32c=f"{layout_crc:08x}",
        index_crc32c=manifests.crc_text(index),
        base=base if (records["flags"] & stripes.DELTA_FLAG).any() else None,
    )


def _publish(
    item: Path,
    manifest: manifests.Manifest,
    specs: list[StripeSpec],
    entries: dict[str, StripeSpec],
    paths: dict[str, Path],
    linked: bool,
) -> None:
    needed: dict[str, StripeSpec] = {}
    for spec in specs:
        while spec.base is not None:
            spec = entries[spec.base]
            needed[spec.uuid] = msgspec.structs.replace(spec, file=base_file(spec.uuid))
    if needed:
        manifest = msgspec.structs.replace(
            manifest,
            requires=(*manifest.requires, DELTA),
            base=BaseSpec(stripes=tuple(needed.values()), linked=linked),
        )
    manifest = msgspec.structs.replace(manifest, stripes=tuple(specs))
    (item / manifests.MANIFEST_NAME).write_bytes(manifests.encode(manifest))
    if linked and needed:
        (item / "base").mkdir()
        for uuid, spec in needed.items():
            os.link(paths[uuid], item / spec.file)


def copied(items: Sequence[Path], root: Path) -> list[Path]:
    """Return copies of items, in steps of the same names below another root."""
    made = [root / item.parent.name / item.name for item in items]
    for item, copy in zip(items, made, strict=True):
        shutil.copytree(item, copy)
    return made


def steps_of(root: Path, n: int, name: str = "default") -> list[Path]:
    """Return the items of so many steps below a root, whose steps' directories exist."""
    items = [root / str(step) / name for step in range(n)]
    for item in items:
        item.parent.mkdir(parents=True)
    return items


def drifting(tree: dict[str, np.ndarray], n: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return a tree as it changes from step to step: a part of the words by a little, or none."""
    rng = np.random.default_rng(seed)
    states = [tree]
    for _ in itertools.repeat(None, n - 1):
        now = {}
        for name, array in states[-1].items():
            words = array.copy().reshape(-1).view(f"u{array.dtype.itemsize}")
            if name.startswith("still"):
                now[name] = words.view(array.dtype).reshape(array.shape)
                continue
            hit = rng.random(words.size) < 0.3
            words[hit] += rng.integers(0, 9, int(hit.sum())).astype(words.dtype)
            now[name] = words.view(array.dtype).reshape(array.shape)
        states.append(now)
    return states
