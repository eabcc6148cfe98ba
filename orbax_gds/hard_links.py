"""Where a file system has no hard links."""

import errno

__all__ = ["NO_LINKS"]

NO_LINKS = frozenset(
    {
        errno.EXDEV,
        errno.EPERM,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EMLINK,
    }
)
"""What the system says where links are impossible, rather than that something is wrong."""
