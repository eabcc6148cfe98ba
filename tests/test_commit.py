"""Whatever fails, and whenever: no item, or the right one."""

import errno

import pytest
from trees import assert_same, small_tree

import orbax_gds as ogds
from orbax_gds import commit, saving
from orbax_gds.errors import (
    CommitError,
    Exists,
    IoError,
    NotFound,
    OgdsError,
)
from orbax_gds.testing.faults import Fault, faulty_system


def _operations(tmp_path) -> int:
    with faulty_system(Fault(None)) as fault:
        ogds.save(tmp_path / "counted", small_tree())
    return len(fault.operations)


@pytest.mark.slow
def test_a_failed_operation_never_leaves_a_wrong_item(tmp_path):
    for at in range(_operations(tmp_path)):
        item = tmp_path / str(at)
        failed = False
        with faulty_system(Fault(at, number=errno.EIO)):
            try:
                ogds.save(item, small_tree())
            except (OgdsError, OSError):
                failed = True
        if (item / "manifest.json").exists():
            assert_same(ogds.restore(item), small_tree())
        else:
            assert failed
            with pytest.raises(NotFound):
                ogds.restore(item)
            ogds.save(item, small_tree())
            assert_same(ogds.restore(item), small_tree())


@pytest.mark.slow
def test_short_writes_change_nothing(tmp_path):
    for at in range(_operations(tmp_path)):
        with faulty_system(Fault(at, "short")):
            ogds.save(tmp_path / str(at), small_tree())
        assert_same(ogds.restore(tmp_path / str(at)), small_tree())


def test_a_save_into_a_published_item_leaves_it_whole(tmp_path):
    prepared = [saving.prepare({"a": n}) for n in range(2)]
    prepared[0].write(tmp_path)
    commit.publish(tmp_path)
    with pytest.raises(Exists, match="already holds"):
        prepared[1].write(tmp_path)
    commit.publish(tmp_path)
    assert ogds.restore(tmp_path) == {"a": 0}


def test_new_parents_are_synced_too(tmp_path):
    with faulty_system(Fault(None)) as fault:
        ogds.save(tmp_path / "a" / "b" / "item", {"x": 1})
    synced = [name for name in fault.operations if name.startswith("fsync")]
    for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert f"fsync {directory}" in synced


def test_a_damaged_pending_manifest_is_not_published(tmp_path):
    saving.prepare({"a": 1}).write(tmp_path)
    pending = tmp_path / "manifest.json.pending"
    pending.write_bytes(pending.read_bytes()[:-1])
    with pytest.raises(CommitError, match="cannot be published"):
        commit.publish(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_errors_of_the_system_keep_their_number(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ogds.save(tmp_path / "file" / "item", {"a": 1})
    prepared = saving.prepare({"a": 1})
    fault = Fault(0, number=errno.ENOSPC)
    with faulty_system(fault), pytest.raises(IoError, match="No space") as raised:
        prepared.write(tmp_path)
    assert raised.value.errno == errno.ENOSPC


def test_every_sync_comes_before_the_name_it_protects(tmp_path):
    item = tmp_path / "item"
    with faulty_system(Fault(None)) as fault:
        ogds.save(item, small_tree())
    done = [operation.replace(str(item), "item") for operation in fault.operations]
    renamed = done.index("rename item/manifest.json.tmp")
    before = [name for name in done[:renamed] if name.startswith("fsync")]
    assert before[0] == "fsync item/p00000.ogds"
    assert "fsync item/_METADATA" in before
    assert before[-2:] == ["fsync item/manifest.json.tmp", "fsync item"]
    after = [name for name in done[renamed:] if name.startswith("fsync")]
    assert after == ["fsync item", f"fsync {tmp_path}"]


def test_nothing_is_published_before_every_stripe_is_sealed(tmp_path):
    prepared = saving.prepare(small_tree())
    with pytest.raises(CommitError, match="nothing to publish"):
        commit.publish(tmp_path)
    prepared.write(tmp_path)
    stripe = tmp_path / "p00000.ogds"
    data = stripe.read_bytes()
    for n in (0, 64, len(data) - 1):
        stripe.write_bytes(data[:n])
        with pytest.raises(CommitError, match=r"p00000\.ogds"):
            commit.publish(tmp_path)
    stripe.unlink()
    with pytest.raises(CommitError, match=r"p00000\.ogds"):
        commit.publish(tmp_path)
    with pytest.raises(NotFound, match="never published"):
        ogds.restore(tmp_path)
    stripe.write_bytes(data)
    commit.publish(tmp_path)
    commit.publish(tmp_path)
    assert_same(ogds.restore(tmp_path), small_tree())


def test_what_is_no_item_is_not_found_and_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        ogds.restore(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"no manifest.json"):
        ogds.restore(tmp_path)
    (tmp_path / "_METADATA").write_text("{}")
    with pytest.raises(NotFound, match="Orbax's own"):
        ogds.restore(tmp_path)
