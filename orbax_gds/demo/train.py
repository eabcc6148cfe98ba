"""The training job of the demo, run as a process of its own so that it can be killed.

It prints one JSON object a line: what it resumed, each step's loss, each save.
"""

import json
import pathlib
import time
from collections.abc import Callable

import click
import orbax.checkpoint as ocp

from orbax_gds.args import GdsRestore, GdsSave
from orbax_gds.demo import model


def train(directory: pathlib.Path, *, until: int, every: int, report: Callable[..., None]) -> None:
    """Train to step `until`, saving every `every` steps, from the last committed step if any.

    Args:
        directory: where the CheckpointManager keeps its steps.
        until: the step to stop after.
        every: steps between two saves.
        report: called with an `event` and its facts as keywords.
    """
    training = model.new_training()
    step = model.make_step(training)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
    with ocp.CheckpointManager(directory, options=options) as checkpoints:
        latest = checkpoints.latest_step()
        if latest is None:
            state = model.new_state(training)
        else:
            state = checkpoints.restore(latest, args=GdsRestore(model.abstract_state(training)))
            report(event="resumed", step=latest, sha256=model.digest(state))
        for number in range((latest or 0) + 1, until + 1):
            state, loss = step(state)
            report(event="trained", step=number, loss=float(loss))
            if number % every == 0:
                report(event="saving", step=number, sha256=model.digest(state))
                start = time.perf_counter()
                checkpoints.save(number, args=GdsSave(state))
                report(event="returned", step=number, secs=time.perf_counter() - start)


def _print_json(**event: object) -> None:
    print(json.dumps(event), flush=True)


@click.command()
@click.argument("directory", type=click.Path(path_type=pathlib.Path))
@click.option("--until", type=int, required=True)
@click.option("--every", type=int, required=True)
def main(directory: pathlib.Path, until: int, every: int) -> None:
    """Train the demo's model in DIRECTORY."""
    train(directory, until=until, every=every, report=_print_json)


if __name__ == "__main__":
    main()
