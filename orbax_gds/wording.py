"""Numbers, codecs and leaves in words, for the terminal and the page."""

from collections.abc import Iterable

from orbax_gds.report import BaseReport, CodecShare, ItemReport, LeafReport, StripeReport

__all__ = [
    "NOTHING",
    "base_text",
    "bits_text",
    "counted_text",
    "derived_text",
    "leaf_text",
    "ratio_text",
    "sample_text",
    "share_text",
    "shares_text",
    "shown",
    "size_text",
    "stripe_text",
]

NOTHING = "\N{EN DASH}"  # in a cell: there is none
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(n_bytes: int) -> str:
    """Return a size with an IEC unit.

    Example:
        >>> size_text(1536)
        '1.5 KiB'
    """
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} B"


def shown(text: str) -> str:
    """Return text on one line: what a terminal would obey or hide is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ratio_text(ratio: float | None) -> str:
    """Return a ratio of compression, or a dash where nothing is stored."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.3f}" if ratio < 100 else f"{ratio:.0f}"


def bits_text(bits: float) -> str:
    """Return bits a word; many where a frame holds a few words."""
    return f"{bits:.2f}" if bits < 100 else f"{bits:.0f}"


def counted_text(n: int, one: str, many: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted_text(1200, "leaf", "leaves")
        '1,200 leaves'
    """
    return f"{n:,} {one if n == 1 else many}"


def share_text(part: int, whole: int) -> str:
    """Return a share in percent, which is 0 or 100 only where it is exactly that.

    Example:
        >>> share_text(99_999, 100_000), share_text(999_999, 1_000_000), share_text(0, 0)
        ('99.999%', '> 99.999%', '0%')
    """
    if part in (0, whole):
        return "100%" if part else "0%"
    text = f"{part / whole:.3%}"
    return {"0.000%": "< 0.001%", "100.000%": "> 99.999%"}.get(text, text)


def stripe_text(stripe: StripeReport) -> str:
    """Return what a stripe holds, and what it follows from."""
    chunks = counted_text(stripe.n_chunks, "chunk", "chunks")
    shards = counted_text(stripe.n_shards, "shard", "shards")
    text = f"{size_text(stripe.n_bytes)}, {chunks}, {shards}"
    if stripe.base is None:
        return text
    return f"{text}; {stripe.n_deltas:,} of the chunks follow from {stripe.base}"


def base_text(base: BaseReport) -> str:
    """Return what an item needs of earlier steps."""
    steps = counted_text(base.chain_length, "earlier step", "earlier steps")
    where = "in the item as links" if base.linked else "in the items of these steps"
    return (
        f"{steps}, {size_text(base.n_bytes)} {where}; "
        f"a restore reads {size_text(base.needed_bytes)} of them"
    )


def shares_text(shares: Iterable[CodecShare], derived_bytes: int = 0) -> str:
    """Return codecs by the bytes that they coded, the largest first: "ladder 97 %, raw 3 %"."""
    found = [(share.raw_bytes, share.codec) for share in shares]
    found += [(derived_bytes, "derived")] if derived_bytes else []
    total = max(1, sum(n_bytes for n_bytes, _ in found))
    if len(found) == 1:
        return found[0][1]
    ordered = sorted(found, key=lambda share: (-share[0], share[1]))
    return ", ".join(f"{name} {_percent(n_bytes / total)}" for n_bytes, name in ordered)


def leaf_text(leaf: LeafReport) -> str:
    """Return dtype and shape: "bfloat16[4096,1024]"; the type of a leaf without words."""
    if leaf.dtype is None or leaf.shape is None:
        return leaf.type
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def derived_text(leaf: LeafReport) -> str:
    """Return what a leaf follows from: "derived from 'master/w' by round"; "" if it is stored."""
    rules = {(d.source, d.rule): 0 for d in leaf.derived}
    return ", ".join(f"derived from {source!r} by {rule}" for source, rule in rules)


def sample_text(report: ItemReport) -> str:
    """Say from how many frames bits and exponents were measured."""
    sample = report.sample
    if sample.n_frames == sample.of_frames:
        return f"Bits a word: measured in all {sample.of_frames} frames."
    return (
        f"Bits a word: measured in {sample.n_frames} of {sample.of_frames} frames, "
        f"{size_text(sample.n_bytes)} of {size_text(sample.of_bytes)}."
    )


def _percent(share: float) -> str:
    if share < 0.005:
        return "< 1 %"
    return f"{100 * share:.0f} %" if share < 0.995 else "> 99 %"
