"""How the words of a chunk become the bytes of a payload.

Names resolve on first use, so that `codecs.reference` can be imported without the native core.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbax_gds.codecs.registry import CODECS, Codec, codec_by_id, codec_by_name

__all__ = ["CODECS", "Codec", "codec_by_id", "codec_by_name"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("orbax_gds.codecs.registry"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
