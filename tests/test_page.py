"""The page that inspect writes: well-formed, closed, escaped, and its numbers are the item's."""

import dataclasses
import importlib.resources
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds.cli import main
from orbax_gds.dtypes import DTYPES, SPLITS
from orbax_gds.page import page
from orbax_gds.page.charts import entropy_bits, exponent_chart, power_text
from orbax_gds.page.map import LIGHT_FILLS
from orbax_gds.page.markup import tag
from orbax_gds.page.treemap import Rectangle, squarify

HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a&amp;b",
    "]]>",
    "</style></title><b>",
    "\x1b[31m\x00\n'",
    "javascript:alert(1)",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((300, 400)).astype(np.float32)
    tree = {name: weights[i : i + 99].astype(ml_dtypes.bfloat16) for i, name in enumerate(HOSTILE)}
    tree["params"] = {"w": weights, "ids": np.arange(30_000)}
    path = tmp_path_factory.mktemp("a<b>&\"'") / "<i>item"
    ogds.save(path, tree, custom_metadata={"note": HOSTILE[0]})
    return ogds.inspect(path, sample_bytes=None)


def parsed(text):
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def texts(element):
    return "".join(element.itertext())


class Seen(HTMLParser):
    """What a browser's parser sees: the names of elements and attributes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.values = set(), set(), []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            self.values.append(value)


def test_the_page_is_closed_and_no_text_of_the_item_is_markup(report):
    text = page(report)
    seen = Seen(text)
    assert not seen.tags & {"script", "img", "link", "iframe", "object", "b onerror", "base", "a"}
    assert not {name for name in seen.attributes if name.startswith("on")}
    assert not seen.attributes & {"src", "href", "action", "data"}
    assert re.findall(r"(?:https?:)?//[a-z]|url\(|@import", text) == ["http://w"]  # the namespace
    names = {
        texts(cell) for cell in parsed(text).iter(f"{HTML}td") if cell.get("class") == "text name"
    }
    assert {name for name in HOSTILE if name.isprintable()} <= names
    assert "\\x1b[31m\\x00\\n'" in names


def test_the_numbers_of_the_page_are_those_of_the_item(report):
    root = parsed(page(report))
    rows = {}
    for row in root.iter(f"{HTML}tr"):
        cells = row.findall(f"{HTML}td")
        if cells:
            rows[texts(cells[0])] = [c.get("title") for c in cells if c.get("title")]
    for leaf in report.leaves:
        if leaf.name.isprintable():
            assert rows[leaf.name] == [f"{leaf.raw_bytes} bytes", f"{leaf.stored_bytes} bytes"]
    for one in report.dtypes:
        assert rows[one.dtype] == [f"{one.raw_bytes} bytes", f"{one.stored_bytes} bytes"]
    for share in report.codecs:
        assert rows[share.codec] == [f"{share.raw_bytes} bytes", f"{share.stored_bytes} bytes"]
    tiles = [
        texts(tile.find(f"{HTML}b"))
        for tile in root.iter(f"{HTML}div")
        if tile.get("class") == "tile"
    ]
    assert f"1 : {report.ratio:.3f}" in tiles


def test_the_map_has_a_cell_for_every_stored_leaf_with_a_tooltip(report):
    root = parsed(page(report))
    (drawing,) = (svg for svg in root.iter(f"{HTML}svg") if svg.get("class") == "map")
    stored = {leaf.name: leaf.stored_bytes for leaf in report.leaves if leaf.stored_bytes}
    areas = {}
    for cell in drawing.findall(f"{HTML}g"):
        name = texts(cell.find(f"{HTML}title")).split("\n")[0]
        box = cell.find(f"{HTML}rect")
        areas[name] = float(box.get("width")) * float(box.get("height"))
    assert len(areas) == len(stored)
    grouped = {"params/w", "params/ids"}
    free = [name for name in stored if name not in grouped and name.isprintable()]
    density = [areas[name] / stored[name] for name in free]
    assert max(density) == pytest.approx(min(density), rel=0.01)


def test_every_picture_names_what_it_shows_and_every_cell_has_a_row_in_a_table(report):
    root = parsed(page(report))
    labels = [svg.get("aria-label") for svg in root.iter(f"{HTML}svg")]
    assert len(set(labels)) == len(labels) > 3
    assert "params/w" in labels[0]
    assert "bfloat16 " in labels[1]
    assert " float32 " in labels[1]
    assert all(th.get("scope") == "col" for th in root.iter(f"{HTML}th"))
    rows = {texts(td) for td in root.iter(f"{HTML}td")}
    assert {leaf.name for leaf in report.leaves if leaf.name.isprintable()} <= rows


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    """The ratio of WCAG 2."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def schemes():
    """The colours of the light and of the dark scheme."""
    css = importlib.resources.files("orbax_gds.page").joinpath("style.css").read_text("utf-8")
    assert "opacity" not in css
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    return {"light": light, "dark": light | dark}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(scheme):
    colours = schemes()[scheme]
    pairs = [(text, back) for text in ("ink", "soft", "faint") for back in ("page", "card")]
    for codec in (
        "raw",
        "ladder",
        "modelled",
        "huffman",
        "ans",
        "zstd",
        "delta",
        "derived",
        "other",
    ):
        pairs.append(("on-light" if codec in LIGHT_FILLS else "on-dark", codec))
    ratios = {pair: contrast(*(colours[name] for name in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.slow
def test_a_page_of_very_many_leaves_stays_small(report):
    (leaf,) = (leaf for leaf in report.leaves if leaf.name == "params/w")
    many = tuple(
        dataclasses.replace(
            leaf, name=f"layer/{i}", path=(("k", "layer"), ("i", i)), exponents=None
        )
        for i in range(3000)
    )
    text = page(dataclasses.replace(report, leaves=many))
    assert len(text) < 4_000_000
    assert "2,000 of 3,000 leaves" in text
    assert "2200 smaller leaves" in text


def test_a_page_of_an_empty_item_says_so(tmp_path):
    ogds.save(tmp_path / "item", {})
    root = parsed(page(ogds.inspect(tmp_path / "item", sample_bytes=None)))
    assert not list(root.iter(f"{HTML}svg"))


@pytest.mark.slow
def test_a_page_can_show_every_dtype(tmp_path):
    words = np.random.default_rng(0).integers(0, 256, 1 << 14, np.uint8)
    tree = {d.name: words.view(d.word_dtype) & d.word_dtype.type((1 << d.bits) - 1) for d in DTYPES}
    tree = {d.name: tree[d.name].view(d.numpy_dtype) for d in DTYPES}
    ogds.save(tmp_path / "item", tree)
    report = ogds.inspect(tmp_path / "item", sample_bytes=None)
    text = texts(parsed(page(report)))
    assert all(d.name in text for d in DTYPES)


def test_the_command_writes_the_page_and_says_so_on_stderr(report, tmp_path):
    arguments = ["inspect", report.path, "--html", str(tmp_path / "page.html")]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "page.html: a page of" in done.stderr
    parsed((tmp_path / "page.html").read_text("utf-8"))
    assert CliRunner().invoke(main, [*arguments, "--json"]).stdout.startswith("{")
    missing = ["inspect", report.path, "--html", str(tmp_path / "no" / "page.html")]
    assert CliRunner().invoke(main, missing).exit_code == 2


@settings(max_examples=20)
@given(st.lists(st.floats(1e-3, 1e6), max_size=30), st.booleans())
def test_a_treemap_fills_its_rectangle_in_proportion(weights, descending):
    weights = sorted(weights, reverse=True) if descending else weights
    within = Rectangle(3, 5, 200, 100)
    cells = squarify(weights, within)
    assert len(cells) == len(weights)
    for weight, cell in zip(weights, cells, strict=True):
        assert cell.area == pytest.approx(within.area * weight / sum(weights), rel=1e-6, abs=1e-6)
        assert cell.x >= 3 - 1e-6
        assert cell.y >= 5 - 1e-6
        assert cell.x + cell.width <= 203 + 1e-6
        assert cell.y + cell.height <= 105 + 1e-6
    for i, a in enumerate(cells):
        for b in cells[i + 1 :]:
            wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert min(wide, high) <= 1e-6


def test_cells_of_a_treemap_are_nearly_square_where_weights_are_alike():
    for cell in squarify([1.0] * 24, Rectangle(0, 0, 600, 400)):
        assert 0.5 < cell.width / cell.height < 2


@settings(max_examples=20)
@given(st.text(max_size=30), st.text(max_size=30))
def test_an_element_gives_back_the_text_it_was_made_of(text, attribute):
    element = ElementTree.fromstring(tag("p", text, title=attribute))
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert (element.text or "") == shown
    assert element.get("title") == "".join(
        c if c.isprintable() else repr(c)[1:-1] for c in attribute
    )


@settings(max_examples=20)
@given(
    st.sampled_from([d for d in DTYPES if d.split is not None]),
    st.dictionaries(st.integers(0, 2047), st.integers(0, 10**9), max_size=9),
)
def test_a_histogram_draws_the_most_frequent_exponent_and_stays_inside(dtype, counts):
    n = 1 << SPLITS[dtype.split].exponent_bits
    found = [0] * n
    for exponent, count in counts.items():
        found[exponent % n] += count
    drawing = ElementTree.fromstring(exponent_chart(dtype.name, found, of=dtype.name))
    bars = drawing.findall(".//rect")
    heights = [float(bar.get("height")) for bar in bars]
    if sum(found):
        assert max(heights) == pytest.approx(110, abs=0.01)
    lefts = [float(bar.get("x")) for bar in bars]
    assert all(a < b for a, b in pairwise(lefts))
    assert all(0 <= float(bar.get("x")) <= 342 and float(bar.get("width")) > 0 for bar in bars)


def test_entropy_and_powers():
    assert entropy_bits([5] * 8) == 3
    assert entropy_bits([0, 7]) == entropy_bits([]) == 0
    assert power_text(-12) == "2⁻¹²"
