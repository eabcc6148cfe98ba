"""Which driver carries the files of a directory."""

import os

from orbax_gds.drivers.posix import PosixDriver
from orbax_gds.drivers.protocol import Driver
from orbax_gds.errors import Unsupported


def open_driver(name: str, directory: str | os.PathLike[str]) -> Driver:
    """Choose the driver that carries the files of a directory.

    Args:
        name: `Options.driver`: "auto" takes the first that is available, direct before buffered,
            and lets single files fall back; any other name insists.
        directory: Where the files will be; it exists.

    Returns:
        A driver whose `reason` says why those preferred to it were passed over.

    Raises:
        Unsupported: No driver of that name can be used there.

    Example:
        >>> open_driver("buffered", "/tmp").name
        'buffered'
    """
    candidates: dict[str, tuple[Driver, ...]] = {
        "auto": (PosixDriver(direct=True), PosixDriver(direct=False)),
        "direct": (PosixDriver(direct=True, insist=True),),
        "buffered": (PosixDriver(direct=False),),
    }
    if name not in candidates:
        raise Unsupported(f"There is no driver {name!r}. Choose one of {sorted(candidates)}.")
    refusals = []
    for driver in candidates[name]:
        refusal = driver.available(directory)
        if refusal is None:
            driver.reason = "; ".join(refusals) or None
            return driver
        refusals.append(f"{driver.name}: {refusal}")
    raise Unsupported(
        f"Driver {name!r} cannot write to {os.fspath(directory)!r}: {'; '.join(refusals)}. "
        "Pass driver='auto' to take the best that is available."
    )
