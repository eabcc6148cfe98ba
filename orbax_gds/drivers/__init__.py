"""How bytes reach a file: the contract of a driver, and the choice of one."""

from orbax_gds.drivers.direct import memory_file_system
from orbax_gds.drivers.few_open import FewOpen, few_open
from orbax_gds.drivers.probe import open_driver
from orbax_gds.drivers.protocol import Driver, File, Mode
from orbax_gds.drivers.together import read_together

__all__ = [
    "Driver",
    "FewOpen",
    "File",
    "Mode",
    "few_open",
    "memory_file_system",
    "open_driver",
    "read_together",
]
