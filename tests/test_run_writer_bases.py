"""Runs coded against bases that lie in files: the bytes are those of bases in memory, words come
back through the chain, and what is wrong with a base is told and never coded against.
"""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_chains import CHANGES, FP32, INT32, OFFSET, Chain, Links, changed, drawn_words, make_chain

from orbax_gds import _native, stripe
from orbax_gds.codecs import zstd
from orbax_gds.dtypes import Dtype
from orbax_gds.testing import dtypes

STATUS = {text: number for number, text in _native.STATUS.items()}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtype=dtypes(), n_steps=st.integers(1, 5), per_run=st.integers(1, 5))
def test_words_come_back_and_bytes_are_those_of_bases_in_memory(
    tmp_path_factory, data: st.DataObject, dtype: Dtype, n_steps: int, per_run: int
) -> None:
    chain = Chain(tmp_path_factory.mktemp("chain"), dtype, per_run)
    chain.drops = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=7))
    words = [drawn_words(rng, dtype, n) for n in sizes]
    for number in range(n_steps):
        hows = data.draw(st.lists(st.sampled_from(["code", "write"]), min_size=1, max_size=3))
        step = chain.save(words, hows)
        frames, records = chain.in_memory(number, number)
        assert step.path.read_bytes() == bytes(OFFSET) + frames
        np.testing.assert_array_equal(step.records, records)
        for out, chunk in zip(chain.restored(number), words, strict=True):
            np.testing.assert_array_equal(out, chunk)
        words = [changed(rng, dtype, chunk, data.draw(CHANGES)) for chunk in words]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data(), dtype=dtypes(), per_run=st.integers(1, 9))
def test_of_marked_chunks_only_the_unchanged_have_bases(
    tmp_path_factory, data: st.DataObject, dtype: Dtype, per_run: int
) -> None:
    chain = Chain(tmp_path_factory.mktemp("chain"), dtype, per_run)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    words = [drawn_words(rng, dtype, n) for n in (3000, 70_000, 1, 900, 300_000, 4000)]
    numbers = st.integers(0, len(words) - 1)
    chain.marked = data.draw(st.lists(numbers, unique=True))
    still = data.draw(st.sets(numbers))
    for number in range(3):
        step = chain.save(words)
        for out, chunk in zip(chain.restored(number), words, strict=True):
            np.testing.assert_array_equal(out, chunk)
        is_delta = step.records["flags"] & 2 != 0
        for chunk in chain.marked if number > 0 else ():
            was = chain.steps[number - 1].words[chunk]
            is_same = (
                np.array_equal(words[chunk], was) and step.records["payload_bytes"][chunk] == 6
            )
            assert is_same or not is_delta[chunk]
        worth = chain.steps[0].records["payload_bytes"] > 100
        assert number == 0 or all(is_delta[chunk] for chunk in still if worth[chunk])
        words = [
            changed(rng, dtype, chunk, "same" if i in still else "new")
            for i, chunk in enumerate(words)
        ]


def test_a_marked_chunk_that_seems_unchanged_is_compared(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    chain.marked = [0, 1, 2]
    words = [chunk.copy() for chunk in chain.steps[0].words]
    words[1][5] += 1
    other = Chain(tmp_path / "other", FP32)
    other.folder.mkdir()
    alike = other.save(words).records["payload_crc32c"][1]
    chain.steps[0].records["payload_crc32c"][1] = alike  # as if the checksums met
    with chain.links() as links:
        error = broken(chain, words, links)
    assert (error.chunk, _native.STATUS[error.status]) == (1, "frame disagrees with the index")


@pytest.mark.parametrize("direct", [False, True])
def test_long_and_many_chunks_and_frames_far_apart_are_read(tmp_path, direct) -> None:
    rng = np.random.default_rng(7)
    chain = Chain(tmp_path, FP32, per_run=1000)
    sizes = [70] * 300 + [400_000, 10, 150_000, 150_000, 5] + [3000] * 40
    words = [drawn_words(rng, FP32, n) for n in sizes]
    chain.save(words)
    words = [changed(rng, FP32, chunk, "few" if i % 9 else "new") for i, chunk in enumerate(words)]
    chain.save(words)
    chain.direct = direct and _reads_directly(chain.steps[0].path)
    words = [changed(rng, FP32, chunk, "few") for chunk in words]
    step = chain.save(words)
    chain.direct = False
    frames, _ = chain.in_memory(2, 2)
    assert step.path.read_bytes() == bytes(OFFSET) + frames
    for out, chunk in zip(chain.restored(2), words, strict=True):
        np.testing.assert_array_equal(out, chunk)


def _reads_directly(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_frames_in_any_order_are_found(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1, n_chunks=5)
    step = chain.steps[0]
    frames = step.path.read_bytes()
    parts = [frames[int(r["offset"]) :][: int(r["frame_bytes"])] for r in step.records]
    moved = b""
    for i in (3, 0, 4, 1, 2):
        step.records["offset"][i] = len(moved)
        moved += parts[i] + bytes(100 + 40_000 * i)
    step.path.write_bytes(moved)
    words = [chunk + 1 for chunk in step.words]
    chain.save(words)
    assert (chain.steps[1].records["flags"] & 2).all()
    for out, chunk in zip(chain.restored(1), words, strict=True):
        np.testing.assert_array_equal(out, chunk)


def test_a_number_that_means_another_file_later_is_not_taken_for_the_first(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    chain.per_run = 1
    halves = [tmp_path / "first", tmp_path / "rest"]
    content, cut = chain.steps[0].path.read_bytes(), int(chain.steps[0].records["offset"][1])
    halves[0].write_bytes(content[:cut])
    halves[1].write_bytes(bytes(cut) + content[cut:])
    words = [chunk + 1 for chunk in chain.steps[0].words]
    step = chain.new_step(words)
    (rows,) = chain.rows(1)
    number, other = (os.open(half, os.O_RDONLY) for half in halves)

    def runs():
        for i, run in enumerate(chain.arguments(words, step.records, [(number, rows)])):
            if i == 1:
                os.dup2(other, number)
            yield run

    writer = _native.RunWriter(runs(), offset=OFFSET, codec="auto", align_bytes=4096, zstd_level=3)
    os.close(number)
    os.close(other)
    with step.path.open("w+b") as file:
        assert writer.write(file.fileno(), chain.room(words), most_secs=10.0) is None
    writer.close()
    chain.steps.append(step)
    assert (step.records["flags"] & 2).all()
    for out, chunk in zip(chain.restored(1), words, strict=True):
        np.testing.assert_array_equal(out, chunk)


# --- what is wrong with a base --------------------------------------------------------------------


def broken(chain: Chain, words: list[np.ndarray], links: Links) -> _native.BrokenBase:
    with pytest.raises(_native.BrokenBase) as caught:
        chain.code(words, links)
    return caught.value


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_frame_is_an_error_that_names_it(tmp_path_factory, data: st.DataObject) -> None:
    chain = make_chain(tmp_path_factory.mktemp("chain"))
    link = data.draw(st.integers(0, 2))
    step, content = chain.steps[link], bytearray(chain.steps[link].path.read_bytes())
    chunk = data.draw(st.integers(0, 2))
    record = step.records[chunk]
    at = int(record["offset"]) + data.draw(st.integers(0, int(record["frame_bytes"]) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    step.path.write_bytes(content)
    with chain.links() as links:
        error = broken(chain, step.words, links)
        assert (error.run, error.chunk, error.link, error.errno) == (0, chunk, link, 0)
        assert f"chunk {chunk}" in str(error)
        assert f"link {link} of 3, from the oldest: {_native.STATUS[error.status]}" in str(error)
        for _, rows in links:
            rows[chunk] = 0
        chain.code(step.words, links)  # it is not read where it is not needed


@settings(max_examples=20, deadline=None)
@given(link=st.integers(0, 2), share=st.floats(0, 0.999))
def test_a_file_that_ends_early_is_an_error(tmp_path_factory, link: int, share: float) -> None:
    chain = make_chain(tmp_path_factory.mktemp("chain"))
    records = chain.steps[link].records
    ends = records["offset"] + records["frame_bytes"]
    n_bytes = int(int(ends[-1]) * share)
    os.truncate(chain.steps[link].path, n_bytes)
    with chain.links() as links:
        error = broken(chain, chain.steps[2].words, links)
    assert (error.link, error.chunk) == (link, int((ends <= n_bytes).sum()))
    assert _native.STATUS[error.status] == "frame is truncated"


def test_another_base_and_one_that_is_not_given_are_errors(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = chain.steps[2].words
    with chain.links() as links:
        (first, one, two) = links
        error = broken(chain, words, [first, two])
        assert (error.link, error.status) == (
            1,
            STATUS["delta: another base than it was coded against"],
        )
        error = broken(chain, words, [one, two])
        assert (error.link, error.status) == (0, STATUS["delta: the words of the base are needed"])
        swapped = links[0][1][[1, 0, 2]]
        assert (
            broken(chain, words, [(first[0], swapped)]).status
            == STATUS["frame disagrees with the layout"]
        )


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("offset", 1 << 63, "frame is truncated"),
        ("offset", (1 << 64) - 64, "frame is truncated"),
        ("frame_bytes", (1 << 32) - 64, "frame length is not possible"),
        ("frame_bytes", 0, "frame disagrees with the index"),
        ("offset", 64, "frame magic differs"),
        ("payload_crc32c", 5, "frame disagrees with the index"),
        ("codec", 200, "frame disagrees with the index"),
    ],
)
def test_records_that_lie_are_errors(tmp_path, field: str, value: int, text: str) -> None:
    chain = make_chain(tmp_path)
    chain.steps[1].records[field][1] = value
    with chain.links() as links:
        error = broken(chain, chain.steps[2].words, links)
    assert (error.chunk, error.link, _native.STATUS[error.status]) == (1, 1, text)


def test_what_the_system_refuses_is_told_by_its_number(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=2)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with chain.links() as links:
            error = broken(chain, chain.steps[1].words, [links[0], (folder, links[1][1])])
    finally:
        os.close(folder)
    assert (error.link, error.errno) == (1, errno.EISDIR)
    assert os.strerror(errno.EISDIR) in str(error)


def test_an_error_of_one_thread_stops_the_others(tmp_path) -> None:
    chain = make_chain(tmp_path, n_chunks=12)
    chain.per_run = 1
    content = bytearray(chain.steps[0].path.read_bytes())
    content[int(chain.steps[0].records["offset"][4]) + 50] ^= 1
    chain.steps[0].path.write_bytes(content)
    with pytest.raises(_native.BrokenBase) as caught:
        chain.save(chain.steps[2].words, ["write", "code", "write"])
    assert (caught.value.run, caught.value.chunk, caught.value.link) == (4, 4, 0)


# --- what the writer holds ------------------------------------------------------------------------


def test_files_and_rows_are_held_until_close(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = [chunk + 1 for chunk in chain.steps[-1].words]
    n_open = len(os.listdir("/proc/self/fd"))
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(3, stripe.RECORD), links)
        rows = [of_link for _, of_link in links]
    assert len(os.listdir("/proc/self/fd")) == n_open + 3
    for of_link in rows:
        with pytest.raises(ValueError, match="resize"):
            of_link.resize((1, 32))  # exported
    assert writer.code(chain.room(words)) is not None
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_words_that_are_not_coded_need_no_base(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    chain.steps[0].path.write_bytes(b"")
    with chain.links() as links:
        assert chain.code(chain.steps[0].words, links, "off") is not None
        writer = chain.writer(chain.steps[0].words, np.zeros(3, stripe.RECORD), [], "auto")
        writer.code(chain.room(chain.steps[0].words))
    assert (writer.secs()["read_base"], writer.secs()["decode_base"]) == (0, 0)


def test_seconds_of_the_base_are_not_those_of_coding(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = chain.steps[2].words
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(3, stripe.RECORD), links)
        writer.code(chain.room(words))
    secs = writer.secs()
    assert min(secs["read_base"], secs["decode_base"], secs["encode"]) > 0


def test_a_stop_ends_the_reading_of_bases(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    chain = Chain(tmp_path, INT32)
    words = [rng.integers(0, 9, 200_000).astype(np.uint32) for _ in range(2)]
    chain.save(words)  # read one after the other
    entered, go_on = threading.Event(), threading.Event()
    n_calls, ended = [], []
    decompress = zstd.decompress

    def slow(coded: memoryview, n_bytes: int):
        n_calls.append(n_bytes)
        entered.set()
        assert go_on.wait(20)
        return decompress(coded, n_bytes)

    monkeypatch.setattr(zstd, "decompress", slow)
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(2, stripe.RECORD), links)
        thread = threading.Thread(target=lambda: ended.append(writer.code(chain.room(words))))
        thread.start()
        assert entered.wait(20)
        writer.stop()
        with pytest.raises(ValueError, match="stop it and wait"):
            writer.close()
        go_on.set()
        thread.join(20)
    assert (ended, len(n_calls)) == ([None], 1)
    writer.close()


def test_wrong_links_are_wrong_arguments(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    words = chain.steps[0].words
    with chain.links() as links:
        descriptor, rows = links[0]
        with pytest.raises(ValueError, match="records has 2 rows, but there are 3 chunks"):
            chain.writer(words, np.zeros(3, stripe.RECORD), [(descriptor, rows[:2])])  # cut by run
        refusals = [((descriptor,), ValueError), (("0", rows), ValueError)]
        refusals += [((None, rows), ValueError), ({0: descriptor, 1: rows}, TypeError)]
        for link, kind in refusals:
            run: Any = (*next(chain.arguments(words, chain.steps[0].records, ()))[:4], [link], None)
            with pytest.raises(kind, match=r"descriptor of a file and records|no.* sequence"):
                _native.RunWriter([run], offset=0, codec="auto", align_bytes=64)
        run = (*next(chain.arguments(words, chain.steps[0].records, links))[:5], bytes(2))
        with pytest.raises(ValueError, match="only_if_alike has 2 bytes, but there are 3 chunks"):
            _native.RunWriter([run], offset=0, codec="auto", align_bytes=64)
        own = chain.steps[0].records.copy()
        with pytest.raises(ValueError, match="records shares memory with records of a base"):
            chain.writer(words, own, [(descriptor, own.view(np.uint8).reshape(3, 32))])
    with pytest.raises(OSError, match="Bad file descriptor"):
        chain.writer(words, own, [(descriptor, rows)])
