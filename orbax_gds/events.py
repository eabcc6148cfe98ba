"""What a save and a restore tell `jax.monitoring`. docs/events.md lists every name.

Listeners are called in the thread that saves or restores, once it is done. One that raises is
named in the log and harms nothing but the listeners behind it, which jax then leaves out.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable
from functools import partial

from jax import monitoring

from orbax_gds.monitoring import SaveReport

__all__ = ["PREFIX", "emit_commit", "emit_restore", "emit_save"]

logger = logging.getLogger(__name__)

PREFIX = "/orbax_gds/"

_TIMES = ("blocking_secs", "blocking_cpu_secs", "background_secs", "cpu_secs")
_NUMBERS = (
    "bytes_in",
    "bytes_out",
    "bytes_derived",
    "n_leaves",
    "n_chunks",
    "n_derived",
    "plan_known",
    "chain_length",
)
_TEXTS = ("driver", "driver_reason", "coding", "coding_reason", "base", "delta_reason")


def emit_save(report: SaveReport) -> None:
    """Tell what a process's part of a save did; what publication takes comes by `emit_commit`."""
    times = {name: getattr(report, name) for name in _TIMES}
    times |= {f"{stage.replace(' ', '_')}_secs": secs for stage, secs in report.seconds.items()}
    scalars = [partial(_scalar, f"save/{name}", int(getattr(report, name))) for name in _NUMBERS]
    for codec, both in report.codecs.items():
        scalars.append(partial(_scalar, "save/codec_bytes_in", both.bytes_in, codec=codec))
        scalars.append(partial(_scalar, "save/codec_bytes_out", both.bytes_out, codec=codec))
    for kind, of_kind in report.chunks.items():
        for name, n in dataclasses.asdict(of_kind).items():
            told = name.removeprefix("n_")
            scalars.append(partial(_scalar, f"save/delta_{told}", n, kind=kind))
    labels = {name: getattr(report, name) or "" for name in _TEXTS}
    synced = partial(_event, "save/synced", process=report.process, **labels)
    _tell([*(partial(_secs, f"save/{n}", secs) for n, secs in times.items()), *scalars, synced])


def emit_commit(secs: float) -> None:
    """Tell how long this process took to publish an item."""
    _tell([partial(_secs, "save/commit_secs", secs)])


def emit_restore(times: dict[str, float], bytes_read: int) -> None:
    """Tell what a restore took: seconds by name, and bytes of frames it read."""
    calls: list[Callable[[], None]] = []
    calls += [partial(_secs, f"restore/{name}", secs) for name, secs in times.items()]
    _tell([*calls, partial(_scalar, "restore/bytes_read", bytes_read)])


def _secs(name: str, secs: float) -> None:
    monitoring.record_event_duration_secs(PREFIX + name, secs)


def _scalar(name: str, value: int, **labels: str) -> None:
    monitoring.record_scalar(PREFIX + name, value, **labels)


def _event(name: str, **labels: str | int) -> None:
    monitoring.record_event(PREFIX + name, **labels)


def _tell(calls: Iterable[Callable[[], None]]) -> None:
    errors: list[Exception] = []
    for call in calls:
        try:
            call()
        except Exception as err:  # whatever a listener of the user's raises
            errors.append(err)
    if errors:
        logger.warning(
            "A listener of jax.monitoring raised %r, %d times in all, when it was told of %s. It "
            "harms no checkpoint; mend or unregister it.",
            errors[0],
            len(errors),
            PREFIX,
            exc_info=errors[0],
        )
