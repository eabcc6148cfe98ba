"""Jobs of several processes: each runs one function of this file, under jax.distributed.

`run_job` starts them; what a function asserts is asserted in every process.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SHAPE = (24, 48)
WIDE = (1536, 512)  # 3 MiB, and half of it more than all the rest but `copies`
DEADLINE_SECS = 3


def run_job(name, directory, n_processes, *, n_devices=1, ends=None, seconds=60) -> list[dict]:
    """Run a function of this file in several processes.

    Args:
        name: of the function.
        directory: is given to it.
        n_processes: of the job, each with `n_devices`.
        ends: exit status expected of some processes, by number; None for any; 0 of the others.
        seconds: after which the job is killed and the test fails.

    Returns:
        What each process printed last, None of those that do not end with 0.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={n_devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    job = [
        subprocess.Popen(
            [sys.executable, __file__, name, directory, f"localhost:{port}", *map(str, (n, each))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n, each in [(n_processes, process) for process in range(n_processes)]
    ]
    said: list = []
    try:
        end = time.monotonic() + seconds
        for number, process in reversed(list(enumerate(job))):
            text, _ = process.communicate(timeout=max(1, end - time.monotonic()))
            expected = (ends or {}).get(number, 0)
            assert expected is None or process.returncode == expected, f"process {number}:\n{text}"
            said.append(None if process.returncode else json.loads(text.splitlines()[-1]))
    finally:
        for process in job:
            process.kill()
            process.wait()
    return said[::-1]


def values(seed=0) -> dict:
    """What is stored, the same for every number of processes and devices."""
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(seed)
    words = rng.standard_normal
    return {
        "spread": words(SHAPE).astype(np.float32),
        "turned": words(SHAPE).astype(ml_dtypes.bfloat16),
        "partly": words(SHAPE).astype(np.float32),
        "wide": words(WIDE).astype(np.float32),
        "copies": [words(30_000).astype(np.float32) for _ in range(12)],
        "key": rng.integers(0, 2**32, (3, 2), np.uint32),
        "host": words(7),
        "step": seed,
    }


def specs() -> dict:
    """Names of mesh axes by dimension; None for what is not a jax array."""
    return {
        "spread": ("x", None),
        "turned": (None, ("y", "x")),
        "partly": ("y",),
        "wide": (("x", "y"),),
        "copies": [()] * 12,
        "key": (),
        "host": None,
        "step": None,
    }


def nudged(step) -> dict:
    """A state of which each step changes a few words."""
    state = values()
    state["wide"].reshape(-1)[::97] += step
    return state | {"step": step}


def tree_of(seed=0, state=None):
    """The state, or this one, as arrays of the whole job."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices())
    grid = devices.reshape(-1, 2) if len(devices) % 2 == 0 else devices.reshape(1, -1)
    over = Mesh(grid, ("x", "y"))

    def whole(value, spec):
        if spec is None:
            return value
        sharding = NamedSharding(over, PartitionSpec(*spec))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    found = {
        name: [whole(v, s) for v, s in zip(value, specs()[name], strict=True)]
        if isinstance(value, list)
        else whole(value, specs()[name])
        for name, value in (state or values(seed)).items()
    }
    found["key"] = jax.random.wrap_key_data(found["key"])
    return found


def assert_restored(got, seed=0, state=None) -> None:
    """Check all that this process holds of a restored state, in every bit."""
    import jax
    import numpy as np

    expected = state or values(seed)
    got["key"] = jax.random.key_data(got["key"])
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        pieces = one.addressable_shards if isinstance(one, jax.Array) else ()
        for piece in pieces:
            assert np.asarray(piece.data).tobytes() == other[piece.index].tobytes()
        if not pieces:
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def manager(directory, barrier=None, options=None, **how):
    import orbax.checkpoint as ocp

    from orbax_gds import handler

    deadline = ocp.AsyncOptions(timeout_secs=DEADLINE_SECS, barrier_sync_fn=barrier)
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(async_options=deadline, **how),
        handler_registry=handler.handler_registry(options),
    )


def save_and_restore(directory) -> dict:
    """Save two steps and restore the first; return what this process has read for that."""
    import jax
    import orbax.checkpoint as ocp

    read = []
    jax.monitoring.register_scalar_listener(
        lambda event, value, **_: read.append(value) if event.endswith("/bytes_read") else None
    )
    with manager(directory) as steps:
        for step in range(2):
            steps.save(step, args=ocp.args.StandardSave(tree_of(step)))
        steps.wait_until_finished()
        assert steps.all_steps() == [0, 1]
        assert_restored(steps.restore(0, args=ocp.args.StandardRestore(tree_of())))
    (n_bytes,) = read
    return {"bytes_read": n_bytes}


def save_deltas(directory) -> dict:
    """Save steps that follow from each other, of which two are kept; restore what there is."""
    import jax
    import orbax.checkpoint as ocp

    import orbax_gds as ogds

    chains = []
    jax.monitoring.register_scalar_listener(
        lambda event, n, **_: chains.append(n) if event.endswith("/chain_length") else None
    )
    for job in range(2):  # the second starts again
        with manager(directory, options=ogds.Options(delta="EveryN(10)"), max_to_keep=2) as steps:
            if job:
                steps.restore(2, args=ocp.args.StandardRestore(tree_of()))
            for step in range(3 * job, 3 * job + 3):
                tree = tree_of(state=nudged(step))
                steps.save(step, args=ocp.args.StandardSave(tree))
            steps.wait_until_finished()
            for step in steps.all_steps():
                got = steps.restore(step, args=ocp.args.StandardRestore(tree_of()))
                assert_restored(got, state=nudged(step))
    return {"chains": chains}


def mostly_new(step) -> dict:
    """A state of which each step changes a few words of the last half of `wide`, and all others."""
    state, new = values(), values(1000 + step)
    n_new = len(state["wide"]) // 2
    new["wide"][n_new:] = state["wide"][n_new:]
    new["wide"][n_new:].reshape(-1)[::97] += step
    return new | {"step": step}


def save_unlinked_deltas(directory) -> dict:
    """Save steps whose bases cannot be linked, and keep one and what that follows from."""
    import errno

    import jax
    import orbax.checkpoint as ocp

    import orbax_gds as ogds

    def refuse(*arguments, **options):
        raise OSError(errno.EPERM, "Operation not permitted")

    os.link = refuse
    chains = []
    jax.monitoring.register_scalar_listener(
        lambda event, n, **_: chains.append(n) if event.endswith("/chain_length") else None
    )
    kept = ogds.KeepBases(ocp.checkpoint_managers.LatestN(1))
    options = ogds.Options(delta="EveryN(10)", chunk_bytes=1 << 18)
    with manager(directory, options=options, preservation_policy=kept) as steps:
        for step in range(4):
            tree = tree_of(state=mostly_new(step))
            steps.save(step, args=ocp.args.StandardSave(tree))
            steps.wait_until_finished()
            got = steps.restore(step, args=ocp.args.StandardRestore(tree_of()))
            assert_restored(got, state=mostly_new(step))
    return {"chains": chains}


def large_values() -> dict:
    """Few large arrays: parameters with their masters, and one that stands alone."""
    import ml_dtypes
    import numpy as np

    words = np.random.default_rng(0).standard_normal
    masters = words((4, 512, 1024)).astype(np.float32)
    return {
        "master": masters,
        "param": masters.astype(ml_dtypes.bfloat16),
        "alone": words(4 << 20).astype(np.float32),
    }


def large_tree():
    """These arrays, whole on every device of the job."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())
    return {
        name: jax.make_array_from_callback(value.shape, everywhere, lambda at, v=value: v[at])
        for name, value in large_values().items()
    }


def save_large(directory) -> dict:
    """Save few large replicated arrays and restore them: the one alone, then all."""
    import numpy as np
    import orbax.checkpoint as ocp

    tree, expected = large_tree(), large_values()
    with manager(directory) as steps:
        for step, names in enumerate((["alone"], ["alone", "master", "param"])):
            part = {name: tree[name] for name in names}
            steps.save(step, args=ocp.args.StandardSave(part))
            steps.wait_until_finished()
            got = steps.restore(step, args=ocp.args.StandardRestore(part))
            for name in names:
                for piece in got[name].addressable_shards:
                    assert np.asarray(piece.data).tobytes() == expected[name].tobytes()
    return {}


def restore(directory) -> dict:
    """Restore what another job has saved."""
    import orbax_gds as ogds

    target = tree_of()
    got = ogds.restore(Path(directory), target)
    assert got["spread"].sharding == target["spread"].sharding
    assert_restored(got)
    return {}


def _strike(directory, how) -> dict:
    """Save a step, then one in which the last process is struck while all are in the background."""
    import jax
    import orbax.checkpoint as ocp

    import orbax_gds as ogds
    from orbax_gds import saving

    struck = jax.process_index() == (0 if how == "kill_first" else jax.process_count() - 1)
    barrier = None if how == "kill_last_orbax" else ogds.barrier_sync_fn
    steps = manager(Path(directory) / "steps", barrier)
    steps.save(0, args=ocp.args.StandardSave(tree_of(0)))
    steps.wait_until_finished()
    write, back, pause = saving.Prepared.write, threading.Event(), threading.Event()

    def strike(*args, **kwargs):
        back.wait()
        while len(list(Path(directory).glob("back*"))) < jax.process_count():
            pause.wait(0.01)
        if how == "kill_sealed":
            write(*args, **kwargs)
        if how.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "lag":
            pause.wait()
        raise OSError(28, "No space left on device")

    saving.Prepared.write = strike if struck and how != "none" else write
    steps.save(1, args=ocp.args.StandardSave(tree_of(1)))
    began = time.monotonic()
    (Path(directory) / f"back{jax.process_index()}").touch()
    back.set()
    try:
        steps.wait_until_finished()
    except BaseException as error:
        raised = [error]
        while raised[-1].__cause__ or raised[-1].__context__:
            raised.append(raised[-1].__cause__ or raised[-1].__context__)
        seconds = time.monotonic() - began
        if how == "fail":  # whose directory all can use again
            saving.Prepared.write = write
            assert steps.save(1, args=ocp.args.StandardSave(tree_of(1)))
            steps.wait_until_finished()
        return {"said": [f"{type(each).__name__}: {each}" for each in raised], "seconds": seconds}
    return {}


def _refused(steps, tree) -> dict:
    """Save a tree as step 1, which must fail; return what was said."""
    import orbax.checkpoint as ocp

    began = time.monotonic()
    steps.save(1, args=ocp.args.StandardSave(tree))
    try:
        steps.wait_until_finished()
    except BaseException as error:
        return {"said": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}
    return {}


def _is_last() -> bool:
    import jax

    return jax.process_index() == jax.process_count() - 1


def another_tree(directory) -> dict:
    """Save a tree that has another leaf in the last process; then the same tree in all."""
    import orbax.checkpoint as ocp

    steps = manager(directory)
    said = _refused(steps, tree_of() | ({"more": 1} if _is_last() else {}))
    assert steps.save(1, args=ocp.args.StandardSave(tree_of(1)))
    steps.wait_until_finished()
    return said


def another_division(directory) -> dict:
    """Save as if the last process ran code that chooses other owners of what all hold."""
    from orbax_gds import leaves

    if _is_last():
        leaves.divided = lambda boxes, _: [(each.box, 0) for each in boxes]
    return _refused(manager(directory), tree_of())


def kill_last(directory) -> dict:
    return _strike(directory, "kill_last")


def kill_last_orbax(directory) -> dict:
    """As `kill_last`, with Orbax's own barrier."""
    return _strike(directory, "kill_last_orbax")


def kill_sealed(directory) -> dict:
    """Kill the last process when it has sealed its stripe and not yet met the others."""
    return _strike(directory, "kill_sealed")


def kill_met(directory) -> dict:
    """Kill the last process when it has met the others, before it comes to Orbax's barrier."""
    from orbax_gds import all_stored

    wait, saves = all_stored.AllStored._wait, []

    def strike(*args):
        wait(*args)
        saves.append(1)
        if _is_last() and len(saves) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    all_stored.AllStored._wait = strike
    return _strike(directory, "none")


def kill_first(directory) -> dict:
    return _strike(directory, "kill_first")


def lag(directory) -> dict:
    return _strike(directory, "lag")


def fail(directory) -> dict:
    return _strike(directory, "fail")


if __name__ == "__main__":
    _, name, directory, address, n_processes, process = sys.argv
    import jax

    jax.distributed.initialize(address, int(n_processes), int(process))
    print(json.dumps(globals()[name](directory)), flush=True)
    if process == "0":  # jax ends the others when this one has ended
        sys.stdin.read()
    os._exit(0)  # a job with a dead or waiting process would not end by itself
