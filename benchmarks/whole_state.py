"""A whole train state: the bytes of one saved item, and of the peers coding each tensor."""

import tempfile
from pathlib import Path
from typing import Any

import jax

import orbax_gds as ogds
from benchmarks.codec_bars import WHOLE_STATE
from benchmarks.result import Row
from benchmarks.state import Leaves
from orbax_gds.bench.contenders import CONTENDERS, OURS

# Our settings of the comparison, by the name of the row.
OUR_OPTIONS = {
    OURS: {},
    f"{OURS} derive off": {"derive": False},
    f"{OURS} codec fast": {"codec": "fast"},
    f"{OURS} codec max": {"codec": "max"},
    f"{OURS} codec off": {"codec": "off"},
}


def whole_state_rows(kinds: dict[str, Leaves], directory: Path) -> tuple[list[Row], str]:
    """Save a train state with each of our settings, and code its tensors with every peer.

    Args:
        kinds: Leaves by kind and name.
        directory: An existing directory, where the items are written and removed.

    Returns:
        Rows of `ratio` and `coded_bytes`, and a note: what "auto" became on this storage.
    """
    tensors = [leaf for leaves in kinds.values() for leaf in leaves.values()]
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    state = jax.device_put(kinds, jax.devices("cpu")[0])
    rows, codecs = [], []
    for name, settings in OUR_OPTIONS.items():
        stored, codec = saved_bytes(state, directory, ogds.Options(**settings))
        codecs.append(codec)
        rows.append(_row(name, n_bytes, stored))
    for contender in CONTENDERS:
        if contender.package is None:
            continue
        reason = contender.missing()
        if reason is not None:
            rows.append(Row(group=WHOLE_STATE, name=contender.name, skipped=reason))
            continue
        coded = sum(contender.make([tensor], 1).encode() for tensor in tensors)
        rows.append(_row(contender.name, n_bytes, coded))
    return rows, f"Whole state: for this storage the save's codec became {codecs[0]!r}."


def saved_bytes(state: Any, directory: Path, options: ogds.Options) -> tuple[int, str]:
    """Save a tree as an item, and return the bytes of its files and the codec it resolved to."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="state-") as place:
        item = Path(place) / "item"
        ogds.save(item, state, options=options)
        files = [path for path in item.rglob("*") if path.is_file()]
        coding = ogds.inspect(item).options["coding"]  # what "auto" was resolved to
        return sum(path.stat().st_size for path in files), coding


def _row(name: str, n_bytes: int, coded_bytes: int) -> Row:
    samples = {"ratio": [n_bytes / coded_bytes], "coded_bytes": [float(coded_bytes)]}
    return Row(group=WHOLE_STATE, name=name, samples=samples)
