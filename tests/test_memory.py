"""Saves that follow one another do not take more and more memory."""

import os
import subprocess
import sys

import pytest

SAVES = """
import gc, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp, orbax_gds as ogds

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

rng = np.random.default_rng(0)
tree = {f"w{i}": jnp.asarray(rng.standard_normal((512, 1024)), jnp.float32) for i in range(8)}
tree |= {f"b{i}": jnp.asarray(rng.standard_normal(64), jnp.bfloat16) for i in range(500)}
step = jax.jit(lambda t: jax.tree.map(lambda x: x * 1.5, t))
sizes = []
handler = ogds.GdsCheckpointHandler()
options = ocp.CheckpointManagerOptions(max_to_keep=1)
with ocp.CheckpointManager(sys.argv[1], item_handlers=handler, options=options) as manager:
    for number in range(21):
        tree = step(tree)
        manager.save(number, args=ogds.args.GdsSave(tree))
        manager.wait_until_finished()
        gc.collect()
        sizes.append(rss())
after_the_first = np.array(sizes[1:]) / 2**20
print(np.polyfit(np.arange(20), after_the_first, 1)[0])
"""


@pytest.mark.slow
def test_twenty_saves_after_the_first_do_not_grow(tmp_path):
    # What is freed of large arrays goes back at once: else the C library keeps now more, now less.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    done = subprocess.run(
        [sys.executable, "-c", SAVES, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    mib_a_save = float(done.stdout.split()[-1])
    assert mib_a_save < 1
