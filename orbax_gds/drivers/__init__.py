"""How bytes reach a file: the contract of a driver, and the choice of one."""

from orbax_gds.drivers.direct import memory_file_system
from orbax_gds.drivers.few_open import FewOpen
from orbax_gds.drivers.probe import open_driver
from orbax_gds.drivers.protocol import Driver, File, Mode

__all__ = ["Driver", "FewOpen", "File", "Mode", "memory_file_system", "open_driver"]
