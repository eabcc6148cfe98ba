"""Which saves are full and which are deltas: policies, small objects that a user can write.

A delta stores what changed since the step before it, its base, and needs that step and those that
it stands on: its chain. A policy is asked before each save that has a base, and ends the chain.
"""

import ast
import dataclasses
import logging
import re
from typing import Any, Protocol, runtime_checkable

from orbax_gds.errors import Unsupported

__all__ = [
    "Chain",
    "ChainLimit",
    "DeltaPolicy",
    "EveryN",
    "Never",
    "WhilePaying",
    "parse_policy",
    "policy_text",
]

logger = logging.getLogger(__name__)

_CALL = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """What the next delta would stand on: the base and the steps that it needs itself.

    Attributes:
        n_deltas: steps since the last full one, the base among them; 0 where the base is full.
        bytes_full: bytes of the stripes of that full step.
        bytes_deltas: the same of each step since, oldest first; of all processes together.
    """

    n_deltas: int
    bytes_full: int
    bytes_deltas: tuple[int, ...] = ()


@runtime_checkable
class DeltaPolicy(Protocol):
    """Says when a step is full. Anything with this method is one.

    Recorded is its `repr`, or the name of its class where that has none of its own.

    It is asked in the background, by every process for itself: of the same chain it must say the
    same. One that raises, or says neither True nor False, gives a full step and a warning: a
    mistake in it must not keep a state from being saved.

    Example:
        >>> class WhileSmall:
        ...     def is_full(self, chain: Chain) -> bool:
        ...         return sum(chain.bytes_deltas) > chain.bytes_full
        >>> isinstance(WhileSmall(), DeltaPolicy)
        True
    """

    def is_full(self, chain: Chain) -> bool:
        """Whether the next step shall be full, although it could stand on this chain."""
        ...


class _Recorded:
    """Shows a policy as it is written, without the names of its fields."""

    def __repr__(self) -> str:
        values = (repr(getattr(self, field.name)) for field in dataclasses.fields(self))  # pyright: ignore[reportArgumentType]
        return f"{type(self).__name__}({', '.join(values)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Never(_Recorded):
    """No deltas: every step is full. The default."""

    def is_full(self, chain: Chain) -> bool:
        """Whether the next step shall be full: always."""
        return True


@dataclasses.dataclass(frozen=True, repr=False)
class EveryN(_Recorded):
    """Every n-th step is full, those between are deltas.

    Args:
        n: 1 makes every step full.

    Example:
        >>> EveryN(8).is_full(Chain(n_deltas=7, bytes_full=100))
        True
    """

    n: int

    def __post_init__(self) -> None:
        _check_count(self, self.n, 1)

    def is_full(self, chain: Chain) -> bool:
        """Whether the next step shall be full: the n - 1 before it are deltas."""
        return chain.n_deltas + 1 >= self.n


@dataclasses.dataclass(frozen=True, repr=False)
class ChainLimit(_Recorded):
    """No step needs more than n others: a restore reads so many deltas more at most.

    `ChainLimit(n)` is `EveryN(n + 1)`, said by what a restore reads.

    Args:
        n: 0 makes every step full.

    Example:
        >>> [ChainLimit(1).is_full(Chain(n_deltas=n, bytes_full=100)) for n in (0, 1)]
        [False, True]
    """

    n: int

    def __post_init__(self) -> None:
        _check_count(self, self.n, 0)

    def is_full(self, chain: Chain) -> bool:
        """Whether the next step shall be full: it would need more than n others."""
        return chain.n_deltas >= self.n


@dataclasses.dataclass(frozen=True, repr=False)
class WhilePaying(_Recorded):
    """Deltas as long as they pay: a full step after one that took too much of the last full one.

    The step after a full one is a delta again, to see whether that pays by now.

    Args:
        share: of the bytes of the full step, above which a delta does not pay.
        limit: so many deltas at most follow a full step, as a restore reads them all.

    Example:
        >>> WhilePaying().is_full(Chain(n_deltas=2, bytes_full=100, bytes_deltas=(30, 71)))
        True
    """

    share: float = 0.7
    limit: int = 16

    def __post_init__(self) -> None:
        is_share = isinstance(self.share, int | float) and 0 < self.share <= 1
        if not is_share:
            raise Unsupported(f"{self!r} is not possible: share is above 0 and at most 1.")
        _check_count(self, self.limit, 0)

    def is_full(self, chain: Chain) -> bool:
        """Whether the next step shall be full: the last delta was too long, or the chain is."""
        if chain.n_deltas >= self.limit:
            return True
        return bool(chain.bytes_deltas) and chain.bytes_deltas[-1] > self.share * chain.bytes_full


def _check_count(policy: DeltaPolicy, n: Any, least: int) -> None:
    if type(n) is not int or n < least:
        raise Unsupported(f"{policy!r} is not possible: give a count from {least} on.")


_POLICIES = {kind.__name__: kind for kind in (Never, EveryN, ChainLimit, WhilePaying)}


def _values(text: str) -> tuple[Any, ...]:
    try:
        return ast.literal_eval(f"({text},)")
    except (ValueError, SyntaxError) as err:
        raise ValueError("in brackets go numbers alone, without names") from err


def parse_policy(text: str) -> DeltaPolicy:
    """Return the policy of this package that a text such as "EveryN(8)" names.

    Raises:
        Unsupported: it names none, or with what it does not take.

    Example:
        >>> parse_policy("WhilePaying(0.5)")
        WhilePaying(0.5, 16)
    """
    match = _CALL.fullmatch(text)
    try:
        if match is None or match[1] not in _POLICIES:
            raise ValueError(f"it is none of {', '.join(_POLICIES)}")
        values = _values(match[2]) if (match[2] or "").strip() else ()
        return _POLICIES[match[1]](*values)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as err:
        raise Unsupported(
            f"{text!r} is no policy for deltas ({err}). Write such as 'EveryN(8)'."
        ) from err


def policy_text(policy: DeltaPolicy) -> str:
    """Return what is recorded of a policy: how it shows itself, else the name of its class.

    Example:
        >>> policy_text(EveryN(8))
        'EveryN(8)'
    """
    kind = type(policy)
    if kind.__repr__ is not object.__repr__:
        try:
            return repr(policy).encode("utf-8", "backslashreplace").decode()
        except Exception as err:  # whatever the policy of a user's raises
            logger.debug("repr of a policy raised %r", err)
    return f"{kind.__module__}.{kind.__qualname__}"
