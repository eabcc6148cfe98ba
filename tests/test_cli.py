"""The command: exit status, what goes where, and no jax."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from delta_items import drifting, follow, steps_of

import orbax_gds as ogds
from orbax_gds import cli, listing, verifying
from orbax_gds import manifest as manifests
from orbax_gds.cli import main
from orbax_gds.commit import read_manifest
from orbax_gds.stripe_check import StripeCheck
from orbax_gds.wording import size_text


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A checkpoint root as Orbax leaves it: two steps, and a third that never was committed."""
    root = tmp_path_factory.mktemp("root")
    tree = {
        "params": {"w": np.arange(12, dtype=np.float32).reshape(3, 4)},
        "opt\n\x1b[31m": [np.zeros(3, np.int8), None],
    }
    for step in ("9", "10"):
        ogds.save(root / step / "default", tree, custom_metadata={"run": step})
    (root / "10" / "metrics").mkdir()
    (root / "10" / "metrics" / "metrics").write_text("{}")
    ogds.save(root / "11.orbax-checkpoint-tmp" / "default.orbax-checkpoint-tmp", tree)
    return root


def run(*arguments):
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


def damage(item: Path) -> None:
    path = item / "p00000.ogds"
    data = bytearray(path.read_bytes())
    data[4096 + 40] ^= 1
    path.write_bytes(data)


@pytest.fixture
def damaged(tmp_path):
    ogds.save(tmp_path / "item", {"w": np.arange(9)})
    damage(tmp_path / "item")
    return tmp_path / "item"


def test_ls_of_a_root_lists_steps_in_numerical_order_with_their_state(root):
    done = run("ls", root)
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("9", "default", "published"),
        ("10", "default", "published"),
        ("11.orbax-checkpoint-tmp", "default.orbax-checkpoint-tmp", "unfinished"),
    ]


def test_ls_of_a_root_as_json(root):
    listed = json.loads(run("ls", root, "--json").stdout)
    assert listed["path"] == str(root)
    assert [set(entry) for entry in listed["items"]] == [
        {"step", "item", "path", "state", "n_bytes", "reason", "kind", "base", "chain_length"}
        | {"own_bytes", "shared_bytes"}
    ] * 3
    assert listed["items"][0]["n_bytes"] > 4096


@pytest.mark.parametrize("linked", [True, False])
def test_ls_tells_deltas_their_bases_and_what_steps_share(tmp_path, linked, monkeypatch):
    items = steps_of(tmp_path, 4)
    tree = {"w": np.arange(3000, dtype=np.uint16)}
    for item, each in zip(items, drifting(tree, 4), strict=True):
        ogds.save(item, each)
    follow(items[:3], linked=linked)
    reads, read = [], listing.named_stripes
    monkeypatch.setattr(listing, "named_stripes", lambda item: reads.append(item) or read(item))
    listed = json.loads(run("ls", tmp_path, "--json").stdout)["items"]
    assert sorted(item for item in reads if item in items) == items  # each once, whoever asks
    found = [(each["kind"], each["base"], each["chain_length"]) for each in listed]
    assert found == [("full", None, 0), ("delta", "0", 1), ("delta", "1", 2), ("full", None, 0)]
    stripes = [(item / "p00000.ogds").stat().st_size for item in items]
    bases = [0, stripes[0], stripes[0] + stripes[1], 0]
    needed = [stripes[0], stripes[0] + stripes[1], sum(stripes[:2]), 0]
    assert [each["shared_bytes"] for each in listed] == (needed if linked else bases)
    for each, base in zip(listed, bases, strict=True):
        there = each["n_bytes"] + base
        assert each["own_bytes"] + each["shared_bytes"] == there
    rows = run("ls", tmp_path).stdout.splitlines()
    assert "delta of 1, chain of 2" in rows[2]
    assert "full" in rows[3]
    (step,) = json.loads(run("ls", tmp_path / "2", "--json").stdout)["items"]
    assert (step["base"], step["chain_length"]) == ("1", 2)
    uuid = read_manifest(items[1]).stripes[0].uuid
    shutil.rmtree(tmp_path / "1")
    (step,) = json.loads(run("ls", tmp_path / "2", "--json").stdout)["items"]
    assert (step["base"], step["state"]) == (uuid, "published" if linked else "broken")
    list_children = Path.iterdir

    def refuse(directory):
        if directory == tmp_path:
            raise PermissionError(13, "Permission denied", str(directory))
        return list_children(directory)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert json.loads(run("ls", tmp_path / "2", "--json").stdout)["items"] == [step]


def test_ls_of_an_item_lists_its_leaves_on_one_line_each(root):
    done = run("ls", root / "10" / "default")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert any(line.startswith("params/w ") and "float32[3,4]" in line for line in lines)
    assert any(line.startswith("opt\\n\\x1b[31m/0 ") for line in lines)


def test_ls_of_an_item_as_json(root):
    leaves = json.loads(run("ls", root / "10" / "default", "--json").stdout)["leaves"]
    by_name = {leaf["name"]: leaf for leaf in leaves}
    assert by_name["params/w"]["path"] == [["k", "params"], ["k", "w"]]
    assert by_name["params/w"]["shape"] == [3, 4]
    assert by_name["params/w"]["raw_bytes"] == 48
    assert by_name["opt\n\x1b[31m/1"]["dtype"] is None


def test_ls_of_a_place_without_items_says_so_on_stderr(tmp_path):
    done = run("ls", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds no item" in done.stderr
    done = run("ls", tmp_path, "--json")
    assert (done.exit_code, json.loads(done.stdout)["items"]) == (2, [])


def test_verify_all_checks_every_step_and_reads_shared_stripes_once(tmp_path, monkeypatch):
    items = steps_of(tmp_path, 4)
    for item, each in zip(items, drifting({"w": np.arange(3000, dtype=np.uint16)}, 4), strict=True):
        ogds.save(item, each)
    follow(items)
    (tmp_path / "4.orbax-checkpoint-tmp" / "default").mkdir(parents=True)
    (tmp_path / "4.orbax-checkpoint-tmp" / "default" / "p00000.ogds").touch()
    read = []
    monkeypatch.setattr(
        verifying,
        "StripeCheck",
        lambda path, *a, **k: (read.append(path.stat().st_ino), StripeCheck(path, *a, **k))[1],
    )
    done = run("verify", tmp_path, "--all")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "every byte that 4 items need" in done.stderr
    assert "Left out: 1 save, never published" in done.stderr
    assert sorted(read) == sorted((item / "p00000.ogds").stat().st_ino for item in items)
    shutil.rmtree(items[0].parent)  # its stripe is left in three others
    read.clear()
    assert run("verify", tmp_path, "--all").exit_code == 0
    assert len(read) == 4
    damage(items[1])
    found = json.loads(run("verify", tmp_path, "--all", "--json").stdout)
    assert [each["ok"] for each in found["items"]] == [False] * 3  # all follow from it
    assert not found["ok"]


def test_verify_all_goes_on_where_a_step_cannot_be_read(tmp_path):
    for step in range(3):
        ogds.save(tmp_path / str(step), {"w": np.arange(9)})
    manifest = read_manifest(tmp_path / "0")
    newer = msgspec.structs.replace(manifest, requires=("telepathy",))
    (tmp_path / "0" / "manifest.json").write_bytes(manifests.encode(newer))
    damage(tmp_path / "2")
    done = run("verify", tmp_path, "--all")
    assert done.exit_code == 1
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        str(tmp_path / "0"),
        str(tmp_path / "2"),
    ]
    assert "telepathy" in done.stdout
    assert "2 problems in 2 of 3 items" in done.stderr


def test_verify_all_without_a_published_item_exits_with_2(tmp_path):
    assert run("verify", tmp_path, "--all").exit_code == 2


@pytest.mark.parametrize("command", ["ls", "inspect", "verify", "report", "diff"])
def test_a_file_is_no_item_but_its_item_is_named(command, root, tmp_path):
    item = root / "10" / "default"
    done = run(command, *[item / "p00000.ogds"] * (1 + (command == "diff")))
    assert done.exit_code == 2
    assert f"is a file of the item {item}. Give" in done.stderr
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"")
    done = run(command, *[other] * (1 + (command == "diff")))
    assert done.exit_code == 2
    assert f"{other} is a file; `orbax-gds convert`" in done.stderr


def test_inspect_adds_up(root):
    report = json.loads(run("inspect", root / "10" / "default", "--json").stdout)
    assert report["raw_bytes"] == 12 * 4 + 3
    assert report["raw_bytes"] == sum(leaf["raw_bytes"] for leaf in report["leaves"])
    assert report["raw_bytes"] == sum(share["raw_bytes"] for share in report["codecs"])
    assert report["stored_bytes"] == sum(stripe["n_bytes"] for stripe in report["stripes"])
    assert report["ratio"] == pytest.approx(report["raw_bytes"] / report["stored_bytes"])
    assert report["custom_metadata"] == {"run": "10"}
    assert report["options"]["codec"] == "auto"


def test_leaves_that_share_a_frame_share_its_length(tmp_path):
    ogds.save(tmp_path / "item", {"a": np.arange(100), "b": np.arange(300), "c": np.ones(40_000)})
    report = ogds.inspect(tmp_path / "item")
    stored = {leaf.name: leaf.stored_bytes for leaf in report.leaves}
    assert stored["b"] == pytest.approx(3 * stored["a"], abs=1)
    assert sum(stored.values()) == sum(share.stored_bytes for share in report.codecs)


def test_inspect_of_a_root_takes_the_latest_published_step(root):
    done = run("inspect", root)
    assert done.exit_code == 0
    assert str(root / "10" / "default") in done.stdout
    assert "on disk" in done.stdout


def test_step_with_several_items_lists_them(tmp_path):
    for name in ("params", "opt"):
        ogds.save(tmp_path / "3" / name, {"w": np.ones(2)})
    for place in (tmp_path, tmp_path / "3"):
        done = run("verify", place)
        assert done.exit_code == 2
        assert str(tmp_path / "3" / "params") in done.stderr
        assert str(tmp_path / "3" / "opt") in done.stderr
    assert run("verify", tmp_path / "3" / "opt").exit_code == 0


def test_verify_of_a_sound_item_prints_no_data(root):
    done = run("verify", root)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "every byte it needs is as it was written" in done.stderr


def test_verify_of_a_damaged_item_lists_problems_and_exits_with_1(damaged):
    done = run("verify", damaged)
    assert done.exit_code == 1
    assert done.stdout.startswith("p00000.ogds, byte 4096, chunk 0, leaf 'w': ")
    assert "1 problem." in done.stderr


def test_item_names_are_no_markup(tmp_path):
    ogds.save(tmp_path / "[red]{x}[/]", {"w": np.ones(2)})
    for command in ("ls", "inspect", "verify"):
        assert run(command, tmp_path / "[red]{x}[/]").exit_code == 0


def test_verify_as_json(damaged, root):
    done = run("verify", damaged, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["path"], found["ok"]) == (str(damaged), False)
    (problem,) = found["problems"]
    assert set(problem) == {"file", "what", "offset", "chunk", "leaves", "where"}
    assert (problem["offset"], problem["chunk"], problem["leaves"]) == (4096, 0, ["w"])
    assert json.loads(run("verify", root, "--json").stdout)["problems"] == []


@pytest.mark.parametrize("command", ["ls", "inspect", "report", "verify"])
def test_what_cannot_be_read_exits_with_2(command, tmp_path):
    done = run(command, tmp_path / "missing")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["frobnicate"], ["verify"], ["ls", ".", "--wrong"]])
def test_wrong_usage_exits_with_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["ls", "inspect", "report", "verify"])
def test_damaged_manifest_exits_with_1(command, damaged):
    with (damaged / "manifest.json").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    done = run(command, damaged)
    assert done.exit_code == 1
    assert "manifest" in done.output


@pytest.mark.parametrize("command", ["ls", "inspect", "report", "verify"])
def test_a_path_that_is_not_utf8_is_given_back(command, tmp_path):
    place = tmp_path / os.fsdecode(b"item\xff")
    ogds.save(place, {"w": np.ones(2)})
    done = run(command, place, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["path"] == str(place)
    done = run(command, place)
    assert done.exit_code == 0
    done.output.encode()


def test_a_defect_exits_with_2_and_one_line(root, monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("x\n")

    monkeypatch.setattr(cli, "inspect", fail)
    done = run("inspect", root)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("orbax-gds: KeyError('x\\n'). This is a defect")


def test_unfinished_save_is_not_found(root):
    place = root / "11.orbax-checkpoint-tmp"
    assert run("inspect", place).exit_code == 2


def test_spec_prints_the_format():
    text = (Path(ogds.__file__).parent / "FORMAT.md").read_text("utf-8")
    assert run("spec").stdout == text
    assert json.loads(run("spec", "--json").stdout) == {"format": 1, "text": text}


def test_steps_sort_by_number_whatever_their_names(tmp_path):
    for step in ("step_2", "step_10", "step_9"):
        ogds.save(tmp_path / step / "default", {"w": np.ones(2)})
    steps = [entry.step for entry in listing.list_items(tmp_path)]
    assert steps == ["step_2", "step_9", "step_10"]
    assert listing.find_item(tmp_path) == tmp_path / "step_10" / "default"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["10", "step_10", "a_b_00000010"])
def test_a_root_means_its_latest_step_whatever_lies_beside(tmp_path, step):
    tree = {"w": np.ones(2)}
    for place in (f"{step[:-2]}09/default", f"{step}/default", "zz", "best/default", "11_old/x"):
        ogds.save(tmp_path / place, tree)
    ogds.save(tmp_path / "12.orbax-checkpoint-tmp" / "default", tree)
    assert listing.find_item(tmp_path) == tmp_path / step / "default"
    ogds.save(tmp_path / step / "ema", tree)
    with pytest.raises(ogds.errors.NotFound) as caught:
        listing.find_item(tmp_path)
    named = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert named == [str(tmp_path / step / name) for name in ("default", "ema")]


def test_steps_that_are_items_are_steps(tmp_path):
    for name in ("9", "10", "zz"):
        ogds.save(tmp_path / name, {"w": np.ones(2)})
    assert listing.find_item(tmp_path) == tmp_path / "10"


def test_items_without_numbers_are_named_and_none_is_chosen(tmp_path):
    places = [tmp_path / "a" / "item", tmp_path / "b"]
    for place in places:
        ogds.save(place, {"w": np.ones(2)})
    with pytest.raises(ogds.errors.NotFound) as caught:
        listing.find_item(tmp_path)
    assert all(str(place) in str(caught.value) for place in places)
    assert listing.find_item(tmp_path / "a") == places[0]


def test_steps_may_have_digits_that_are_no_numbers(tmp_path):
    for step in ("step_2", "step_\N{SUPERSCRIPT TWO}", "step_\N{ARABIC-INDIC DIGIT THREE}"):
        ogds.save(tmp_path / step / "default", {"w": np.ones(2)})
    assert len(listing.list_items(tmp_path)) == 3


def test_what_vanishes_while_it_is_listed_is_left_out(tmp_path, monkeypatch):
    ogds.save(tmp_path / "5" / "default", {"w": np.ones(2)})
    (tmp_path / "6").mkdir()
    (before,) = listing.list_items(tmp_path)
    children = listing.FilePath.iterdir

    def stale(directory):
        if directory.name == "6":
            raise FileNotFoundError(2, "No such file or directory", str(directory))
        return iter([*children(directory), directory / "gone"])

    monkeypatch.setattr(listing.FilePath, "iterdir", stale)
    assert listing.list_items(tmp_path) == [before]


@pytest.mark.parametrize("command", ["ls", "inspect", "report", "verify"])
def test_no_text_of_a_manifest_reaches_the_terminal_as_a_command(tmp_path, command):
    evil = "a\x1b[31m\x9b2J\n"
    ogds.save(tmp_path / "item", {evil: np.ones(2)}, custom_metadata={"x": evil})
    manifest = msgspec.structs.replace(
        read_manifest(tmp_path / "item"), writer=evil, options={evil: evil}
    )
    (tmp_path / "item" / "manifest.json").write_bytes(manifests.encode(manifest))
    done = run(command, tmp_path / "item")
    assert done.exit_code == 0
    leaf = msgspec.structs.replace(manifest.leaves[0], type=evil)
    refused = msgspec.structs.replace(manifest, leaves=(leaf,), requires=(evil,))
    (tmp_path / "item" / "manifest.json").write_bytes(manifests.encode(refused))
    shown = done.output + run(command, tmp_path / "item").output
    assert all(c.isprintable() for line in shown.splitlines() for c in line)
    assert "\x9b" not in shown


def test_cut_save_is_listed_as_unfinished(tmp_path):
    ogds.save(tmp_path / "5" / "default", {"w": np.ones(2)})
    (tmp_path / "5" / "default" / "manifest.json").unlink()
    (entry,) = listing.list_items(tmp_path)
    assert entry.state == "unfinished"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_have_iec_units(n_bytes, text):
    assert size_text(n_bytes) == text


NO_JAX = """
import sys
import orbax_gds
from click.testing import CliRunner
from orbax_gds.cli import main
for arguments in {commands!r}:
    assert CliRunner().invoke(main, arguments).exit_code == 0, arguments
    heavy = [name for name in ("jax", "jaxlib", "orbax", "tensorstore") if name in sys.modules]
    assert not heavy, (arguments, heavy)
"""


@pytest.mark.slow
def test_the_package_and_every_command_but_demo_import_no_jax(root, tmp_path):
    commands = [["--version"], ["--help"], ["demo", "--help"], ["spec"]]
    commands += [["bench", "codec", "--help"]]
    for command in ("ls", "inspect", "verify", "report"):
        commands += [[command, str(root)], [command, str(root / "10" / "default"), "--json"]]
    commands += [["inspect", str(root), "--html", str(tmp_path / "page.html")]]
    script = NO_JAX.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "orbax_gds", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert ogds.__version__ in done.stdout
