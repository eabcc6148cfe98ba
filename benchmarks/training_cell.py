"""One cell of `training`: a fresh process that trains with and without saves in flight.

`python -m benchmarks.training_cell SPEC` with SPEC as JSON; the answer is one line of JSON on
stdout.
"""

import sys
import time
from pathlib import Path
from typing import Any

import jax
import msgspec

from benchmarks.methods import METHODS, Behind
from benchmarks.process import sync_file_system
from benchmarks.stretch import Stretch, save_samples, take_steps
from benchmarks.training_spec import PYTHON, Answer, Spec
from benchmarks.training_steps import Trainer, make_trainer
from benchmarks.tree import fill, plan_leaves, read_state

N_WARM_UP_STEPS = 5  # chosen: compilation, and the first steps after it


def train(spec: Spec) -> Answer:
    """Take steps without a save and beside one in turn, and compare each save's with both.

    Raises:
        TypeError: The method cannot say whether a save is in flight.
    """
    directory = Path(spec.directory)
    trainer = make_trainer(spec.loop)
    for _ in range(N_WARM_UP_STEPS):
        trainer.step()
    words = fill(plan_leaves(spec.n_bytes, spec.n_leaves), read_state(Path(spec.state)))
    rest = {name: jax.block_until_ready(jax.device_put(values)) for name, values in words}
    method = METHODS[spec.method](directory, rest | dict(trainer.state()))
    if not isinstance(method, Behind):
        raise TypeError(f"{spec.method} does not say whether a save is in flight")
    _save(method, trainer, rest, 0, spec.least_seconds)
    samples: dict[str, list[float]] = {}
    before = _quiet(trainer, directory, spec)
    for step in range(1, 1 + spec.n_saves):
        blocking_s, during = _save(method, trainer, rest, step, spec.least_seconds)
        after = _quiet(trainer, directory, spec)
        figures = save_samples(before, during, after, blocking_s)
        for quantity, figure in figures.items():
            # beside a jitted step, the thread waits for XLA as well, and the two look alike
            if spec.loop == PYTHON or not quantity.startswith("gil_"):
                samples.setdefault(quantity, []).append(figure)
        before = after
    method.close()
    return Answer(samples=samples)


def _save(
    method: Behind, trainer: Trainer, rest: dict[str, Any], step: int, least_seconds: float
) -> tuple[float, Stretch]:
    method.tree = rest | dict(trainer.state())
    begin = time.perf_counter()
    method.start(step)
    blocking_s = time.perf_counter() - begin
    method.tree = rest  # no reference to what the next step donates
    during = take_steps(trainer.step, least_seconds, method.is_saving)
    method.finish()
    return blocking_s, during


def _quiet(trainer: Trainer, directory: Path, spec: Spec) -> Stretch:
    sync_file_system(directory)  # what a library left to the kernel is not written beside this
    return take_steps(trainer.step, spec.least_seconds)


if __name__ == "__main__":
    answer = train(msgspec.json.decode(sys.argv[1], type=Spec))
    print(msgspec.json.encode(answer).decode(), flush=True)
