"""Threads of ours never race with training for the pieces that jax makes of an array.

jax makes them when it is first asked, and of two threads that ask at once one finds too few.
"""

import jax
import jax.numpy as jnp
import numpy as np
from in_memory import mesh
from jax.sharding import NamedSharding, PartitionSpec

from orbax_gds import saving, snapshot
from orbax_gds.options import Options
from orbax_gds.pieces import divide

SPREAD = NamedSharding(mesh(8), PartitionSpec("x"))


def fresh(n, n_elements=16):
    grow = jax.jit(lambda x: x + 1)
    arrays = [grow(jax.device_put(np.arange(float(n_elements)), SPREAD))]
    while len(arrays) < n:
        arrays.append(grow(arrays[-1]))
    return arrays


def test_the_thread_that_plans_a_restored_tree_asks_no_array_for_its_pieces():
    arrays = fresh(5)
    n_before = len(jax.live_arrays())
    plans = saving.make_cache(Options())
    plans.expect(arrays)
    plans.await_expected()
    assert len(jax.live_arrays()) == n_before
    assert plans.plan(arrays)[2]


def test_pieces_are_made_before_another_thread_takes_them(monkeypatch):
    monkeypatch.setattr(snapshot, "_spread", lambda s: (len(s.device_set) > 1, True))  # all far
    arrays = fresh(20, 1 << 18)
    n_before = len(jax.live_arrays())
    prepared = saving.prepare(arrays, options=Options(staging_bytes=8 << 20))
    assert not prepared.staged.is_set()
    assert len(jax.live_arrays()) >= n_before + 8 * len(arrays)


def test_keys_are_divided_too_and_what_has_no_pieces_is_passed_over():
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), SPREAD)
    deleted = fresh(2)[1]
    deleted.delete()
    divide([keys, deleted, jnp.ones(3), np.ones(3), 3, "text", None])
    assert len(keys._base_array._arrays) == 8
