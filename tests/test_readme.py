"""What README.md promises is run: its code, its commands, its links."""

import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from click.testing import CliRunner

import orbax_gds as ogds
from orbax_gds.cli import main

N_FLIPS = 20
ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_code_of_the_readme_runs_from_top_to_bottom(tmp_path: pathlib.Path):
    def train_step(state):
        gradients = jax.tree.map(jnp.ones_like, state["params"])
        updates, opt_state = optimizer.update(gradients, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}

    optimizer = optax.adam(1e-3)
    params = {"w": jnp.ones((64, 32), jnp.bfloat16), "b": jnp.zeros(32)}
    begin = {"params": params, "opt_state": optimizer.init(params)}
    names = {"path": tmp_path / "run", "train_step": train_step, "state": begin}
    for block in blocks("python"):
        exec(block, names)
    expected = begin
    for _ in range(3):
        expected = train_step(expected)
    assert jax.tree.structure(names["state"]) == jax.tree.structure(expected)
    jax.tree.map(assert_same_bits, names["state"], expected)


def assert_same_bits(found: jax.Array, expected: jax.Array):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.slow
def test_most_flipped_bits_pass_orbax_silently_and_none_passes_us(tmp_path: pathlib.Path):
    state = {"w": jax.random.normal(jax.random.key(0), (64, 1024))}
    with ocp.CheckpointManager(tmp_path / "orbax") as theirs:
        theirs.save(1, args=ocp.args.StandardSave(state))
        theirs.wait_until_finished()
        data = max((tmp_path / "orbax").rglob("d/*"), key=lambda path: path.stat().st_size)
        restore = functools.partial(theirs.restore, 1, args=ocp.args.StandardRestore(state))
        assert outcomes_of_flips(data, restore, state).count("wrong") > N_FLIPS / 2
    ogds.save(tmp_path / "ours", state)
    restore = functools.partial(ogds.restore, tmp_path / "ours", state)
    outcomes = outcomes_of_flips(tmp_path / "ours" / "p00000.ogds", restore, state)
    assert set(outcomes) <= {"Corrupt", "Truncated"}


def outcomes_of_flips(path: pathlib.Path, restore: Callable[[], Any], expected: Any) -> list[str]:
    """Return what a restore does with N_FLIPS flipped bits of a file, one at a time.

    It is "right" or "wrong" bits, or the name of the error.
    """
    content = path.read_bytes()
    outcomes = []
    for position in np.linspace(0, 8 * len(content) - 1, N_FLIPS).astype(int):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            found = restore()
        except Exception as error:  # tensorstore's errors have no class of their own
            outcomes.append(type(error).__name__)
        else:
            same = np.asarray(found["w"]).tobytes() == np.asarray(expected["w"]).tobytes()
            outcomes.append("right" if same else "wrong")
    path.write_bytes(content)
    return outcomes


def test_there_are_two_set_up_commands_the_demo_and_the_tests():
    demo, tests = blocks("sh")
    assert demo.splitlines() == [demo.strip()]
    assert tests.splitlines() == [tests.strip()]
    assert demo.strip().endswith(".venv/bin/orbax-gds demo")
    assert tests.strip().endswith(".venv/bin/pytest")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_every_link_leads_to_a_file(target: str):
    assert (ROOT / target).exists()


@pytest.mark.slow
def test_the_commands_of_the_readme_exist():
    (listed,) = re.findall(r"`orbax-gds (ls \|[^`]*)`", README)
    command = [sys.executable, "-P", "-m", "orbax_gds", "--help"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in [*listed.split(" | "), "demo"]:
        assert re.search(rf"^ +{name}\b", text, re.MULTILINE), name


def test_the_lines_that_look_at_a_state_name_commands_and_options_that_exist():
    (lines,) = blocks("console")
    for line in lines.splitlines():
        name, command, *words = line.partition("#")[0].split()
        assert name == "orbax-gds"
        path = [command, words.pop(0)] if command == "bench" else [command]
        done = CliRunner().invoke(main, [*path, "--help"])
        assert done.exit_code == 0, line
        assert all(word in done.output for word in words if word.startswith("--")), line


def test_every_number_is_filled_in():
    assert "{{" not in README
