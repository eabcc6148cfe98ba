"""A step's links to what it follows from: whole or not there, whatever fails, and durable."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from delta_runs import (
    EVERY,
    assert_restores,
    n_links,
    state,
    stripe,
)

import orbax_gds as ogds
from orbax_gds import commit, saving
from orbax_gds.errors import CommitError, NotFound, OgdsError
from orbax_gds.linked_stripes import link_stripes, unlink_stripes
from orbax_gds.testing.faults import Fault, faulty_system


def _operations(root: Path) -> list[str]:
    with faulty_system(Fault(None)) as fault:
        ogds.save(root / "2", state(2), options=EVERY)
    shutil.rmtree(root / "2")
    return fault.operations


def _assert_harmless(root: Path, at: int) -> None:
    """Check that a fault at an operation leaves a whole delta or none, and that one can follow."""
    failed = False
    with faulty_system(Fault(at, number=errno.EIO)):
        try:
            ogds.save(root / "2", state(2), options=EVERY)
        except (OgdsError, OSError):
            failed = True
    if not (root / "2" / "manifest.json").exists():
        assert failed
        with pytest.raises(NotFound):
            ogds.restore(root / "2")
        ogds.save(root / "2", state(2), options=EVERY)
    assert_restores(root / "2", 2)
    shutil.rmtree(root / "2")


@pytest.mark.slow
def test_whatever_fails_a_delta_is_whole_or_not_there_and_harms_no_other_step(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    for at in range(len(_operations(tmp_path))):
        _assert_harmless(tmp_path, at)
    assert_restores(tmp_path / "1", 1)


@pytest.mark.slow
def test_whatever_fails_about_a_base_a_delta_is_whole_or_not_there(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    operations = _operations(tmp_path)
    about = [n for n, what in enumerate(operations) if "base" in what or what.startswith("link")]
    assert len(about) >= 4
    for at in about:
        _assert_harmless(tmp_path, at)


def test_links_are_durable_before_the_manifest_has_a_name(tmp_path):
    for step in (1, 2):
        with faulty_system(Fault(None)) as fault:
            ogds.save(tmp_path / str(step), state(step), options=EVERY)
    done = [operation.replace(str(tmp_path / "2"), "item") for operation in fault.operations]
    linked = next(n for n, what in enumerate(done) if what.startswith("link "))
    stored = f"fsync item/base/{stripe(tmp_path / '1').uuid}.ogds"  # perhaps a copy, never synced
    order = [stored, "fsync item/base", "fsync item", "rename item/manifest.json.tmp"]
    assert [linked, *map(done.index, order)] == sorted([linked, *map(done.index, order)])
    assert done.index("fsync item/base") < done.index("fsync item/manifest.json.pending")


def test_an_attempt_that_failed_leaves_nothing_in_the_next(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    (tmp_path / "2").mkdir()
    saving.prepare(state(2), options=EVERY).write(tmp_path / "2")
    assert n_links(tmp_path / "2") == 1
    ogds.save(tmp_path / "2", state(2), options=ogds.Options())
    assert not (tmp_path / "2" / "base").exists()
    assert_restores(tmp_path / "2", 2)


def test_a_stripe_is_not_published_by_what_another_attempt_said(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    (tmp_path / "2").mkdir()
    saving.prepare(state(2)).write(tmp_path / "2")
    pending = (tmp_path / "2" / commit.PENDING_NAME).read_bytes()
    saving.prepare(state(2), options=EVERY).write(tmp_path / "2")
    (tmp_path / "2" / commit.PENDING_NAME).write_bytes(pending)
    with pytest.raises(CommitError, match="two saves"):
        commit.publish(tmp_path / "2")


@pytest.mark.parametrize("missing", [True, False])
def test_links_that_are_gone_or_changed_are_not_published(tmp_path, missing):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    (tmp_path / "2").mkdir()
    saving.prepare(state(2), options=EVERY).write(tmp_path / "2")
    (link,) = (tmp_path / "2" / "base").iterdir()
    data = link.read_bytes()
    link.unlink()
    if not missing:
        link.write_bytes(data[:-1])
    with pytest.raises(CommitError, match="gone" if missing else "bytes, not"):
        commit.publish(tmp_path / "2")
    assert not (tmp_path / "2" / "manifest.json").exists()


def test_a_process_links_while_another_takes_its_links_out_again(tmp_path, monkeypatch):
    stored, link = tmp_path / "stripe", os.link
    stored.write_bytes(b"words")
    ours, theirs = "ab" * 16, "cd" * 16
    assert link_stripes(tmp_path, {theirs: stored}) is None

    def late(*paths):
        unlink_stripes(tmp_path, [theirs])
        link(*paths)

    monkeypatch.setattr(os, "link", late)
    assert link_stripes(tmp_path, {ours: stored}) is None
    assert [path.stem for path in (tmp_path / "base").iterdir()] == [ours]


def test_of_a_stripe_that_is_a_symbolic_link_the_file_is_linked(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    stored = tmp_path / "store.ogds"
    (tmp_path / "1" / "p00000.ogds").rename(stored)
    (tmp_path / "1" / "p00000.ogds").symlink_to(stored)
    ogds.save(tmp_path / "2", state(2), options=EVERY)
    (link,) = (tmp_path / "2" / "base").iterdir()
    assert not link.is_symlink()
    stored.unlink()
    assert_restores(tmp_path / "2", 2)
