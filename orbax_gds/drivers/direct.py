"""What the kernel says about direct I/O on a file: its alignment, or why there is none."""

import ctypes
import functools
import os
import sys

BUFFER_ALIGNMENT = 4096  # chosen: pool buffers and runs of frames lie on it, FORMAT §6

_STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000
_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}


def direct_refusal(directory: str | os.PathLike[str]) -> str | None:
    """Return why no file of a directory can be written directly, or None to go and try.

    A file system that does not know may still refuse a file when it is opened or first written.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no O_DIRECT"
    name = memory_file_system(directory)
    if name is not None:
        # New kernels accept O_DIRECT there and ignore it: it would be a lie to say direct.
        return f"{os.fspath(directory)!r} is on {name}, which lies in the page cache"
    return None


def memory_file_system(directory: str | os.PathLike[str]) -> str | None:
    """Return the name of the file system of a directory if it lies in memory, else None."""
    if sys.platform != "linux":
        return None
    return _MEMORY_FILE_SYSTEMS.get(_file_system(directory) or 0)


def direct_alignment(descriptor: int) -> int | None:
    """Return what offsets, lengths and addresses must be multiples of on an open file, in bytes.

    Returns:
        At most `BUFFER_ALIGNMENT`, which is also the answer where the kernel does not tell; None
        where it says that the file has no direct I/O, or one that needs more.
    """
    answer = ctypes.create_string_buffer(256)
    try:
        statx = _libc().statx
    except (AttributeError, OSError):
        return BUFFER_ALIGNMENT
    flags, mask = ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_DIOALIGN)
    refused = statx(ctypes.c_int(descriptor), b"", flags, mask, answer)
    if refused or not int.from_bytes(answer[0:4], sys.byteorder) & _STATX_DIOALIGN:
        return BUFFER_ALIGNMENT
    memory = int.from_bytes(answer[152:156], sys.byteorder)
    offset = int.from_bytes(answer[156:160], sys.byteorder)
    if not memory or not offset or max(memory, offset) > BUFFER_ALIGNMENT:
        return None
    return max(memory, offset)


@functools.cache  # it builds four classes
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _file_system(path: str | os.PathLike[str]) -> int | None:
    """The magic number of the file system, which os.statvfs does not tell."""
    answer = ctypes.create_string_buffer(512)
    try:
        statfs = _libc().statfs
    except (AttributeError, OSError):
        return None
    if statfs(os.fsencode(path), answer):
        return None
    return ctypes.c_long.from_buffer(answer).value & 0xFFFFFFFF
