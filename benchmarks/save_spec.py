"""What `save` asks of a cell and what the cell answers, as JSON between the two processes."""

import msgspec

SAVES = ("1st", "2nd")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell does.

    Attributes:
        action: "save" or "restore".
        method: Name in `benchmarks.methods.METHODS`.
        directory: Where the steps lie.
        n_bytes: Size of the tree.
        n_leaves: Leaves of the tree.
        state: Path of the train state.
        checksums: For a restore, CRC-32 of each leaf's words; what the save answered.
    """

    action: str
    method: str
    directory: str
    n_bytes: int
    n_leaves: int
    state: str
    checksums: dict[str, int] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell measured.

    Attributes:
        figures: Quantity to figure; the unit is in the name.
        checksums: Of a save, CRC-32 of each leaf's words.
    """

    figures: dict[str, float]
    checksums: dict[str, int] = {}
