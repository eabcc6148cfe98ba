"""What README.md promises is run: its code, its commands, its links."""

import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

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


def test_there_are_two_set_up_commands_the_demo_and_the_tests():
    demo, tests = blocks("sh")
    assert demo.splitlines() == [demo.strip()]
    assert tests.splitlines() == [tests.strip()]
    assert demo.strip().endswith(".venv/bin/orbax-gds demo")
    assert tests.strip().endswith(".venv/bin/pytest")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_every_link_leads_to_a_file(target: str):
    assert (ROOT / target).exists()


def test_the_commands_of_the_readme_exist():
    (listed,) = re.findall(r"`orbax-gds (ls[^`]*)`", README)
    command = [sys.executable, "-P", "-m", "orbax_gds", "--help"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in [*listed.split(" | "), "demo"]:
        assert re.search(rf"^ +{name}\b", text, re.MULTILINE), name


def test_every_number_is_filled_in():
    assert "{{" not in README
