"""What `leaves` asks of a cell and what the cell answers, as JSON between the two processes."""

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell does.

    Attributes:
        action: "save" or "restore".
        method: Name in `benchmarks.methods.METHODS`.
        directory: Where the steps lie.
        n_leaves: Leaves of the tree.
        shape: Shape of each.
        is_mixed: Whether every other leaf is bf16; all are fp32 otherwise.
        n_repeats: Saves after the first, or restores after the first.
        checksum: For a restore, CRC-32 of all leaves in order; what the save answered.
    """

    action: str
    method: str
    directory: str
    n_leaves: int
    shape: tuple[int, ...]
    is_mixed: bool
    n_repeats: int
    checksum: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell measured.

    Attributes:
        samples: Quantity to figures; the unit is in the name.
        checksum: CRC-32 of all leaves in order.
    """

    samples: dict[str, list[float]]
    checksum: int
