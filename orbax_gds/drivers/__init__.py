"""How bytes reach a file: the contract of a driver, and the choice of one."""

from orbax_gds.drivers.probe import open_driver
from orbax_gds.drivers.protocol import Driver, File, Mode

__all__ = ["Driver", "File", "Mode", "open_driver"]
