"""`inspect` of items that follow from earlier steps: what they need, and what their frames hold."""

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from delta_items import drifting, follow, steps_of

import orbax_gds as ogds
from orbax_gds import stripe as stripes
from orbax_gds.cli import main
from orbax_gds.commit import read_manifest
from orbax_gds.errors import Corrupt
from orbax_gds.item import Item


def tree() -> dict[str, np.ndarray]:
    normal = np.random.default_rng(5).standard_normal(20_000).astype(np.float32)
    return {"w": normal[::-1].astype(ml_dtypes.bfloat16), "mu": normal, "still": normal[:9000]}


@pytest.fixture(scope="module", params=[True, False], ids=["linked", "unlinked"])
def items(request, tmp_path_factory):
    made = steps_of(tmp_path_factory.mktemp("root"), 3)
    for item, state in zip(made, drifting(tree(), 3), strict=True):
        ogds.save(item, state, options=ogds.Options(chunk_bytes=4096))
    follow(made, linked=request.param)
    return made


@pytest.mark.parametrize("step", range(3))
def test_the_report_says_what_an_item_needs_of_earlier_steps(items, step):
    report = ogds.inspect(items[step])
    manifest = read_manifest(items[step])
    (stripe,) = report.stripes
    assert (stripe.base, stripe.chain_length) == (manifest.stripes[0].base, step)
    assert report.stored_bytes == stripe.n_bytes == (items[step] / stripe.file).stat().st_size
    if step == 0:
        assert (report.base, stripe.n_deltas) == (None, 0)
        return
    with Item(items[step]) as item:
        for leaf in range(len(item.dtypes)):
            item.read_leaf(leaf)
        flags = item.stripes[0].records["flags"]
        own = int(item.stripes[0].records["frame_bytes"].sum())
        assert stripe.n_deltas == int((flags & stripes.DELTA_FLAG != 0).sum()) > 0
        assert report.base.needed_bytes == item.bytes_read - own
    assert report.base.chain_length == step
    assert report.base.n_bytes == sum(entry.bytes for entry in manifest.base.stripes)
    assert report.base.linked == manifest.base.linked


def test_exponents_are_those_of_the_words_and_changes_are_a_plane(items):
    state = drifting(tree(), 3)[2]
    report = ogds.inspect(items[2], sample_bytes=None)
    assert report.sample.n_frames == report.sample.of_frames
    leaves = {leaf.name: leaf for leaf in report.leaves}
    for name, array in state.items():
        words = array.view(f"u{array.dtype.itemsize}")
        exponents = words >> words.dtype.type(7 if name == "w" else 23) & words.dtype.type(255)
        assert leaves[name].exponents == tuple(np.bincount(exponents, minlength=256))
        planes = leaves[name].planes
        assert planes.total == pytest.approx(8 * leaves[name].stored_bytes / array.size, rel=0.01)
        assert (planes.change > 0) == (name != "still")
        assert planes.exponent == planes.whole == 0


def test_the_terminal_and_the_page_say_it(items, tmp_path):
    (entry,) = read_manifest(items[2]).stripes
    found = CliRunner().invoke(main, ["inspect", str(items[2]), "--html", str(tmp_path / "p")])
    found = found.output + CliRunner().invoke(main, ["inspect", str(items[2])]).output
    for text in (found, (tmp_path / "p").read_text()):
        assert "follows from" in text
        assert "2 earlier steps" in text
        assert entry.base in text


def test_a_damaged_frame_of_a_base_is_named(items):
    with Item(items[2]) as item:
        link = item.stripes[0].chain[0]
        at = int(link.records["offset"][0])
    before = link.path.read_bytes()
    data = bytearray(before)
    data[at + 40] ^= 1
    link.path.write_bytes(data)
    with pytest.raises(Corrupt, match=f"{link.path.name}: chunk 0 at byte {at}: .*CRC32C"):
        ogds.inspect(items[2], sample_bytes=None)
    link.path.write_bytes(before)
