"""What `delta` asks of a cell and what the cell answers, as JSON between the two processes."""

import msgspec

FULL_EVERY = 8  # a chain of 8: a full step and the seven deltas after it
DELTAS, FULL, ORBAX = "orbax_gds EveryN(8)", "orbax_gds full steps", "orbax default"
METHODS = (DELTAS, FULL, ORBAX)
SPARSE_SHARE = 0.01
NOTHING, SPARSE, ROWS, OTHER, RANDOM = (
    "nothing changed",
    "1 % of the elements changed",
    "1 % of the rows changed",
    "everything changed, other values",
    "everything changed, random bits",
)
CHANGES = (NOTHING, SPARSE, ROWS, OTHER, RANDOM)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the trees of the steps come from: a file each, or one tree that changes a little.

    Attributes:
        files: Train states, one a step; kinds other than `kinds` are left out.
        kinds: Of the files, such as "params_bf16".
        state: Without files, the train state that fills half of the tree.
        n_bytes: Size of that tree.
        n_leaves: Leaves of it.
        n_steps: Steps of it; 1 % of the elements change from each to the next.
    """

    files: list[str] = []
    kinds: list[str] = []
    state: str = ""
    n_bytes: int = 0
    n_leaves: int = 0
    n_steps: int = 0


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell does.

    Attributes:
        action: "changes": save a tree after every kind of change, as a delta and in full. "save":
            save every step of the source. "restore": restore some of them.
        method: One of METHODS; "changes" is of ours alone.
        directory: Where the steps lie.
        source: The trees; of "changes" the first one.
        steps: Of a restore, which.
        checksums: Of a restore, that of each of these steps.
        has_warm_up: Whether the first of them is restored once before, untimed.
    """

    action: str
    method: str
    directory: str
    source: Source
    steps: list[int] = []
    checksums: list[int] = []
    has_warm_up: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell measured.

    Attributes:
        samples: Quantity to one figure a step, the unit ends the name; of "changes" the quantity
            follows the change and a colon.
        checksums: Of a save, one for each step, over the words of all leaves.
    """

    samples: dict[str, list[float]]
    checksums: list[int] = []
