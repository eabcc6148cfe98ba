"""What `training` asks of a cell and what the cell answers, as JSON between the two processes."""

import msgspec

ALL_CORES, ONE_CORE, PYTHON = "jitted step, all cores", "jitted step, one core", "Python step"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell does.

    Attributes:
        loop: What the training loop's step is: one of the three above.
        method: Name in `benchmarks.methods.METHODS`.
        directory: Where the steps lie.
        n_bytes: Size of what is saved.
        n_leaves: Leaves of it beside those that are trained.
        state: Path of the train state that fills it.
        n_saves: Saves that are measured; one more, not measured, comes first.
        least_seconds: Shortest stretch of steps without a save.
    """

    loop: str
    method: str
    directory: str
    n_bytes: int
    n_leaves: int
    state: str
    n_saves: int
    least_seconds: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell measured: quantity to one figure a save; the unit is in the name."""

    samples: dict[str, list[float]]
