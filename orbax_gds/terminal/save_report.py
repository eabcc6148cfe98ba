"""What `report` prints of the save of an item."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.text import Text

from orbax_gds.monitoring import CodecBytes, ProcessReport
from orbax_gds.terminal.table import console, table
from orbax_gds.wording import NOTHING, counted_text, ratio_text, shown, size_text

__all__ = ["save_report_text"]

_STAGES = (
    "plan",
    "snapshot",
    "derive",
    "find base",
    "weigh",
    "read base",
    "decode base",
    "encode",
    "pace",
    "write",
    "sync",
    "commit",
)
_KINDS = ("unchanged", "delta", "direct")


def save_report_text(reports: Sequence[ProcessReport]) -> None:
    """Print what the processes of a save measured: seconds, bytes, codecs, and the ways taken.

    Args:
        reports: one a process, at least one.
    """
    known = {stage: None for one in reports for stage in one.seconds}
    stages = [*(s for s in _STAGES if s in known), *(s for s in known if s not in _STAGES)]
    table(
        "Seconds, by process (encode, pace, write and those of a base are sums over threads)",
        (
            "process",
            "plan was",
            "blocking",
            "background",
            "CPU",
            "CPU while blocking",
            *map(shown, stages),
        ),
        [_times(one, stages) for one in reports],
        left=2,
    )
    table(
        "Bytes, by process",
        ("process", "chunks", "in memory", "derived", "on disk", "ratio"),
        [
            (
                f"{one.process}",
                f"{one.n_chunks:,}",
                size_text(one.bytes_in),
                size_text(one.bytes_derived),
                size_text(one.bytes_out),
                _ratio(one.bytes_in, one.bytes_out),
            )
            for one in reports
        ],
    )
    codecs = _summed(reports)
    if codecs:
        rows = [
            (name, size_text(n.bytes_in), size_text(n.bytes_out), _ratio(n.bytes_in, n.bytes_out))
            for name, n in codecs.items()
        ]
        table("By codec, all processes", ("codec", "in", "out", "ratio"), rows)
    kinds = [(kind, [one.chunks[kind] for one in reports if kind in one.chunks]) for kind in _KINDS]
    rows = [
        (
            kind,
            f"{sum(n.n_chunks for n in some):,}",
            size_text(sum(n.bytes_in for n in some)),
            size_text(sum(n.bytes_out for n in some)),
        )
        for kind, some in kinds
        if some
    ]
    if rows:
        table("Chunks of the delta, all processes", ("coded", "chunks", "in", "out"), rows)
    out = console()
    out.print()
    for line in _reasons(reports):
        out.print(Text(shown(line)))


def _times(one: ProcessReport, stages: Iterable[str]) -> tuple[str, ...]:
    whole = (one.blocking_secs, one.background_secs, one.cpu_secs, one.blocking_cpu_secs)
    parts = (one.seconds.get(stage) for stage in stages)
    times = (NOTHING if secs is None else f"{secs:.3f}" for secs in (*whole, *parts))
    return f"{one.process}", "known" if one.plan_known else "new", *times


def _ratio(bytes_in: int, bytes_out: int) -> str:
    return ratio_text(bytes_in / bytes_out if bytes_out else None)


def _summed(reports: Iterable[ProcessReport]) -> dict[str, CodecBytes]:
    sums: dict[str, CodecBytes] = {}
    for one in reports:
        for name, n in one.codecs.items():
            before = sums.get(name, CodecBytes(bytes_in=0, bytes_out=0))
            sums[name] = CodecBytes(
                bytes_in=before.bytes_in + n.bytes_in, bytes_out=before.bytes_out + n.bytes_out
            )
    return sums


def _reasons(reports: Iterable[ProcessReport]) -> list[str]:
    """Say which ways were taken and why, each once, with the processes that took it."""
    takers: dict[str, list[int]] = defaultdict(list)
    for one in reports:
        why = f": {one.driver_reason}" if one.driver_reason else ""
        takers[f"written {one.driver}{why}"].append(one.process)
        if one.base is not None:
            needed = counted_text(one.chain_length, "stripe", "stripes")
            takers[f"delta: needs {needed} of earlier steps"].append(one.process)
        elif one.delta_reason:
            takers[f"full: {one.delta_reason}"].append(one.process)
        takers[f"coding {one.coding}: {one.coding_reason}"].append(one.process)
    return [
        f"{what} (process {numbers[0]})"
        if len(numbers) == 1
        else f"{what} ({counted_text(len(numbers), 'process', 'processes')})"
        for what, numbers in takers.items()
    ]
