"""The line-up on some arrays: ratio and speed of every contender, and which are on the front."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from orbax_gds.bench.contenders import CONTENDERS, Contender
from orbax_gds.bench.sources import Streams
from orbax_gds.bench.timing import SWEEP_BYTES, Samples, time_contenders

WORKING_SET_BYTES = 12_000_000  # chosen: with destination, more than the cache of most cores

__all__ = ["LineUp", "Result", "measure_streams", "total"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One contender on one dtype.

    Attributes:
        name: of the contender.
        skipped: why it did not run, else None; then the figures are None.
        coded_bytes: length of what it made.
        ratio: source bytes by coded bytes.
        encode_gbps, decode_gbps: medians, of source bytes.
        encode_x_memcpy, decode_x_memcpy: the same against a memcpy timed just before.
        on_front: whether no other contender is as good in ratio and both speeds, and better in one.
        raw: dtypes that it takes not, counted in a total as they are, at the speed of memcpy.
    """

    name: str
    skipped: str | None = None
    coded_bytes: int | None = None
    ratio: float | None = None
    encode_gbps: float | None = None
    decode_gbps: float | None = None
    encode_x_memcpy: float | None = None
    decode_x_memcpy: float | None = None
    on_front: bool = False
    raw: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineUp:
    """All contenders on one dtype, or on all of them.

    Attributes:
        name: of the dtype, or "total".
        n_bytes: bytes that were coded.
        of_bytes, of_arrays: what there is.
        memcpy_gbps: median of a memcpy of the same bytes.
        results: in the order of the contenders.
    """

    name: str
    n_bytes: int
    of_bytes: int
    of_arrays: int
    memcpy_gbps: float
    results: tuple[Result, ...]


def measure_streams(
    streams: Streams,
    *,
    n_threads: int = 1,
    repetitions: int = 5,
    budget_secs: float | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
    working_set_bytes: int = WORKING_SET_BYTES,
    sweep_bytes: int = SWEEP_BYTES,
    progress: Callable[[], None] | None = None,
) -> LineUp:
    """Time every contender on what was read of one dtype.

    Args:
        streams: not empty.
        n_threads: threads of every contender that has any, and of the memcpy.
        repetitions: timed ones, after one that is discarded.
        budget_secs: no further repetition begins after this time; one is always timed.
        contenders: the codecs.
        working_set_bytes: least bytes to code for each thread; copies make up what is missing.
        sweep_bytes: memory read before each timed part to empty the caches.
        progress: called whenever a contender has run once.

    Raises:
        RuntimeError: our codec returned other bits than it was given.
    """
    timing = time_contenders(
        contenders,
        streams.arrays,
        repetitions=repetitions,
        n_threads=n_threads,
        working_set_bytes=working_set_bytes,
        sweep_bytes=sweep_bytes,
        budget_secs=budget_secs,
        progress=progress,
    )
    samples = timing.samples
    results = [
        Result(name=one.name, skipped=timing.skipped[one.name])
        if one.name in timing.skipped
        else _result(one.name, samples[one.name], timing.n_copies)
        for one in contenders
    ]
    memcpy = [figure for own in samples.values() for figure in own["memcpy_gbps"]]
    return LineUp(
        name=streams.dtype,
        n_bytes=streams.n_bytes,
        of_bytes=streams.of_bytes,
        of_arrays=streams.of_arrays,
        memcpy_gbps=statistics.median(memcpy) if memcpy else float("nan"),
        results=_fronted(results),
    )


def total(parts: Sequence[LineUp]) -> LineUp:
    """Add line-ups of several dtypes up, each weighed as much as there is of it.

    What a contender does not take is counted as it is, at the speed of memcpy, and named. One that
    ran nowhere is skipped.
    """
    names = [result.name for result in parts[0].results]
    n_bytes = sum(part.of_bytes for part in parts)
    copying = sum(part.of_bytes / part.memcpy_gbps for part in parts)
    results = []
    for i, name in enumerate(names):
        own = [(part, part.results[i]) for part in parts]
        if all(result.skipped is not None for _, result in own):
            results.append(Result(name=name, skipped=own[0][1].skipped))
            continue
        results.append(_summed(name, own, n_bytes, copying))
    return LineUp(
        name="total",
        n_bytes=sum(part.n_bytes for part in parts),
        of_bytes=n_bytes,
        of_arrays=sum(part.of_arrays for part in parts),
        memcpy_gbps=n_bytes / copying,
        results=_fronted(results),
    )


def _summed(
    name: str, own: Sequence[tuple[LineUp, Result]], n_bytes: int, copying: float
) -> Result:
    coded = encoding = decoding = 0.0
    for part, result in own:
        coded += part.of_bytes / (result.ratio or 1.0)
        encoding += part.of_bytes / (result.encode_gbps or part.memcpy_gbps)
        decoding += part.of_bytes / (result.decode_gbps or part.memcpy_gbps)
    return Result(
        name=name,
        coded_bytes=round(coded),
        ratio=n_bytes / coded,
        encode_gbps=n_bytes / encoding,
        decode_gbps=n_bytes / decoding,
        encode_x_memcpy=copying / encoding,
        decode_x_memcpy=copying / decoding,
        raw=tuple(part.name for part, result in own if result.skipped is not None),
    )


def _result(name: str, samples: Samples, n_copies: int) -> Result:
    def median(quantity: str) -> float:
        return statistics.median(samples[quantity])

    return Result(
        name=name,
        coded_bytes=round(samples["coded_bytes"][0] / n_copies),
        ratio=median("ratio"),
        encode_gbps=median("encode_gbps"),
        decode_gbps=median("decode_gbps"),
        encode_x_memcpy=median("encode_x_memcpy"),
        decode_x_memcpy=median("decode_x_memcpy"),
    )


def _fronted(results: Sequence[Result]) -> tuple[Result, ...]:
    """Mark the results that no other one dominates."""
    figures = {
        i: np.array([result.ratio, result.encode_gbps, result.decode_gbps], float)
        for i, result in enumerate(results)
        if result.skipped is None
    }
    return tuple(
        dataclasses.replace(
            result,
            on_front=i in figures
            and not any(
                (other >= figures[i]).all() and (other > figures[i]).any()
                for other in figures.values()
            ),
        )
        for i, result in enumerate(results)
    )
