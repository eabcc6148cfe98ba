"""Kill the training job in the middle of a save, start it again, and judge what it found."""

import dataclasses
import pathlib

from orbax_gds.demo.job import Job, Life

POLL_SECS = 0.0005  # chosen: a save of the demo's state takes two orders of magnitude longer
BEGUN_BYTES = 1 << 20  # chosen: some frames are written by then, most are not


@dataclasses.dataclass(frozen=True, kw_only=True)
class Killed:
    """A training job that was killed while it saved.

    Attributes:
        step: the step whose save was cut short.
        stripe_bytes: length of the stripes that the cut save had begun.
        committed: the steps that stood committed at that moment.
        life: what the job had reported until then.
    """

    step: int
    stripe_bytes: int
    committed: tuple[int, ...]
    life: Life


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """Whether the second job went on from exactly the bits that the first one committed.

    Attributes:
        committed_step: the newest step committed before the kill.
        resumed_step: the step that the second job resumed from.
        sha256_saved: digest of the committed step's state, taken before its save.
        sha256_resumed: digest of the state that the second job restored.
        steps_again: the steps that both jobs trained.
        same_losses: whether both saw the same losses there, to the last bit. It follows from the
            same state on a machine whose arithmetic is deterministic, so it is told, not required.
    """

    committed_step: int | None
    resumed_step: int | None
    sha256_saved: str | None
    sha256_resumed: str | None
    steps_again: tuple[int, ...]
    same_losses: bool

    @property
    def identical(self) -> bool:
        """The proof: the newest committed step was resumed, and its digest is that of the save."""
        resumed = self.resumed_step is not None and self.resumed_step == self.committed_step
        return resumed and self.sha256_resumed == self.sha256_saved


def train_and_kill(directory: pathlib.Path, *, from_step: int, every: int) -> Killed:
    """Train until a save is in progress, and kill the job there with SIGKILL.

    The job is frozen before it is judged, so that it is certain that a stripe has been begun and
    the step is not committed. A save too quick to be caught is let go, and the next one awaited.

    Args:
        directory: where the job keeps its steps.
        from_step: the first step whose save may be cut short.
        every: steps between two saves.

    Raises:
        DemoFailed: the job failed, or ended before one of eleven saves could be caught.
    """
    with Job(directory, until=from_step + 10 * every, every=every) as job:
        while job.listen(POLL_SECS):
            step = max(job.life.sha256, default=0)
            if step < from_step or stripe_bytes(directory, step) < BEGUN_BYTES:
                continue
            job.freeze()
            begun = stripe_bytes(directory, step)
            if begun >= BEGUN_BYTES:
                job.kill()
                committed = committed_steps(directory)
                return Killed(step=step, stripe_bytes=begun, committed=committed, life=job.life)
            job.thaw()
        raise job.failure("none of its saves could be cut short")


def resume(directory: pathlib.Path, *, until: int, every: int) -> Life:
    """Start the job again, let it train to its end, and return what it reported.

    Raises:
        DemoFailed: the job ended with an error.
    """
    with Job(directory, until=until, every=every) as job:
        while job.listen():
            pass
        if job.end() != 0:
            raise job.failure(f"it was to train to step {until}")
        return job.life


def judge(killed: Killed, resumed: Life) -> Judgement:
    """Compare what the first job committed with what the second one resumed."""
    newest = max(killed.committed, default=None)
    again = tuple(sorted(killed.life.losses.keys() & resumed.losses.keys()))
    return Judgement(
        committed_step=newest,
        resumed_step=resumed.resumed_step,
        sha256_saved=killed.life.sha256.get(newest) if newest is not None else None,
        sha256_resumed=resumed.resumed_sha256,
        steps_again=again,
        same_losses=all(killed.life.losses[step] == resumed.losses[step] for step in again),
    )


def stripe_bytes(directory: pathlib.Path, step: int) -> int:
    """Return how many bytes the stripes of an uncommitted step hold; 0 if it has none."""
    unfinished = directory / f"{step}.orbax-checkpoint-tmp"
    try:
        return sum(stripe.stat().st_size for stripe in unfinished.glob("*/*.ogds"))
    except FileNotFoundError:  # renamed between the listing and the look: it is committed
        return 0


def committed_steps(directory: pathlib.Path) -> tuple[int, ...]:
    """Return the steps that Orbax has committed, in ascending order."""
    return tuple(sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit()))
