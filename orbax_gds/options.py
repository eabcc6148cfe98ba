"""Options of a save or restore: frozen, checked at construction, overridable by environment."""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from orbax_gds.delta import DeltaPolicy, Never, parse_policy, policy_text
from orbax_gds.errors import Unsupported

Codec = Literal["auto", "fast", "max", "off"]
Driver = Literal["auto", "direct", "buffered"]

MAX_CHUNK_BYTES = 64 << 20  # chosen: a chunk is coded in one call and read whole
ENVIRONMENT_PREFIX = "ORBAX_GDS_"
_NEVER = Never()

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)\s*")


def parse_size(size: int | str) -> int:
    """Return a size in bytes, written as an integer or as text with an IEC unit.

    Args:
        size: bytes, or text such as "4MiB", "1.5 GiB", "512".

    Returns:
        The number of bytes.

    Raises:
        Unsupported: the text is not a size.

    Example:
        >>> parse_size("4MiB")
        4194304
    """
    if type(size) is int:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise Unsupported(f"{size!r} is not a size. Write bytes or an IEC unit, such as '4MiB'.")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to save and restore; every field has a default that suits training on local storage.

    Sizes are bytes or text with an IEC unit. A field may be overridden from outside by an
    environment variable, such as ORBAX_GDS_CODEC=off, when `Options.from_environment` builds it,
    as the handlers do when they are given no options.

    Attributes:
        codec: "auto" codes each chunk by its content: the smallest of what it tries, as long as
            coding keeps up with the storage; on faster storage a save falls back to "fast" or
            "off". From 32 MiB a process on, that is measured: coding by a sample, storage by the
            handler's last save or, before a first one of 256 MiB or more, by writing up to 1/32 of
            the state, at most 16 MiB. Smaller saves, and chunks below 64 KiB, are coded without a
            look, but for words for zstd where there is 1 MiB of them. In memory (tmpfs, ramfs, or
            storage that the handler's last save did not wait for) zstd is not used, and a save of
            less than 256 MiB of floats is raw.
            "fast" only tries what is nearly as fast as copying. "max" tries everything, for
            archives. "off" stores the words as they are.
        driver: "auto" writes directly to the device where the file system allows and through the
            page cache elsewhere; "direct" or "buffered" insists.
        chunk_bytes: upper bound of a chunk before coding, 4 KiB to 64 MiB.
        staging_bytes: bound of the host memory that a save takes: copies from accelerators and of
            NumPy arrays, and buffers on the way to disk, of which there is always one, of about
            9 MiB or a chunk. Of jax arrays on CPUs only those below 64 KiB are copied, at once.
            Where the copies do not fit, they are taken in windows, and training waits for all but
            the last to be written; the shards of one run (8 MiB) are always taken whole, and words
            that follow from others are not looked for. None, the default, copies all at once. Not
            counted is what a delta needs to read its base: 2 MiB, or two chunks, for each worker.
        io_rate: most bytes a second that a process writes, such as "500MiB": all saves with the
            same rate share it, whatever their items and handlers, and measuring storage is one of
            them. None does not slow down. Coding is chosen as without it.
        workers: threads that code and write; None takes the number of processors, at most 4.
        derive: do not store words that follow from other leaves of the same save: of a leaf that
            equals another, or is another one rounded from float32 to bfloat16. Every word is
            checked, and restored as it was. It goes with any codec, "off" too. Shards below 64 KiB
            are always stored, and the other leaf must have a shard of the same box in the same
            process. Restored alone, rounded parameters read the float32 leaf: about 26 bits a word
            where their own would be about 10.6.
        delta: which steps of a run are deltas, that is, store what changed since the last committed
            step: `Never()`, `EveryN(8)`, `ChainLimit(7)`, `WhilePaying()`, any object with
            `is_full`, or text such as "EveryN(8)". A step whose structure, sharding, number of
            processes or `chunk_bytes` is another than before is full by itself, and so is any under
            codec "off". A delta is not weighed: it is coded as "auto" codes where storage is slow.

    Raises:
        Unsupported: a value is out of range or not one of those named.

    Example:
        >>> Options(chunk_bytes="256KiB").chunk_bytes
        262144
    """

    codec: Codec = "auto"
    driver: Driver = "auto"
    chunk_bytes: int | str = 1 << 20
    staging_bytes: int | str | None = None
    io_rate: int | str | None = None
    workers: int | None = None
    derive: bool = True
    delta: DeltaPolicy | str = _NEVER

    def __post_init__(self) -> None:
        for name in ("chunk_bytes", "staging_bytes", "io_rate"):
            size = getattr(self, name)
            object.__setattr__(self, name, None if size is None else parse_size(size))
        codecs = ("auto", "fast", "max", "off")
        _check("codec", self.codec, self.codec in codecs, f"one of {codecs}")
        known = ("auto", "direct", "buffered")
        _check("driver", self.driver, self.driver in known, f"one of {known}")
        in_range = 4096 <= int(self.chunk_bytes) <= MAX_CHUNK_BYTES
        _check("chunk_bytes", self.chunk_bytes, in_range, "4 KiB to 64 MiB")
        bound = self.staging_bytes
        _check("staging_bytes", bound, bound is None or int(bound) > 0, "None or above 0")
        rate = self.io_rate
        _check("io_rate", rate, rate is None or int(rate) >= 1 << 20, "None or from 1 MiB on")
        workers_fit = self.workers is None or (type(self.workers) is int and self.workers > 0)
        _check("workers", self.workers, workers_fit, "None or a count above 0")
        _check("derive", self.derive, type(self.derive) is bool, "True or False")
        if isinstance(self.delta, str):
            object.__setattr__(self, "delta", parse_policy(self.delta))
        # as isinstance says of the protocol, in a tenth of the time: every restore comes by
        is_policy = callable(getattr(self.delta, "is_full", None))
        is_policy = is_policy and not isinstance(self.delta, type)
        _check("delta", self.delta, is_policy, "an object with is_full, such as EveryN(8)")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Options":
        """Return the defaults, changed by the ORBAX_GDS_<FIELD> variables that are set."""
        given: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
            if text is not None:
                given[field.name] = text
        if "workers" in given:
            _check("workers", given["workers"], given["workers"].isdecimal(), "a count above 0")
            given["workers"] = int(given["workers"])
        if "derive" in given:
            given["derive"] = _SWITCH.get(given["derive"].lower(), given["derive"])
        return cls(**given)

    @property
    def delta_policy(self) -> DeltaPolicy:
        """Which steps are deltas."""
        assert not isinstance(self.delta, str), "a text is a policy since construction"
        return self.delta

    @property
    def bytes_per_second(self) -> int | None:
        """The most bytes a second that a process writes; None for no bound."""
        return None if self.io_rate is None else int(self.io_rate)

    @property
    def n_workers(self) -> int:
        """The number of threads that code and write."""
        return self.workers or min(4, os.cpu_count() or 1)

    def as_json(self) -> dict[str, str | int | None]:
        """Return the resolved options as the manifest records them."""
        names = [field.name for field in dataclasses.fields(self)]
        resolved = {name: getattr(self, name) for name in names}
        policy = policy_text(self.delta_policy)
        return resolved | {"workers": self.n_workers, "delta": policy}


def _check(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise Unsupported(f"Options({name}={value!r}) is not possible: give {expected}.")
