"""What `bench codec` prints of a line-up."""

from rich.text import Text

from orbax_gds.bench.contenders import OURS
from orbax_gds.bench.lineup import LineUp, Result
from orbax_gds.terminal.table import console, table
from orbax_gds.wording import NOTHING, counted_text, ratio_text, shown, size_text

__all__ = ["line_up_text"]


def line_up_text(line_up: LineUp) -> None:
    """Print the line-up on one dtype, or the total, with the front marked."""
    read = line_up.n_bytes if line_up.n_bytes != line_up.of_bytes else 0
    title = f"{line_up.name}: {size_text(line_up.of_bytes)} in " + counted_text(
        line_up.of_arrays, "array", "arrays"
    )
    rows = [_result_row(result) for result in line_up.results if result.skipped is None]
    rows.append(("memcpy", "1.000", *(f"{line_up.memcpy_gbps:.2f}", "1.00") * 2, "", ""))
    heads = ("ratio", "encode GB/s", "x memcpy", "decode GB/s", "x memcpy", "front", "")
    table(f"{title}, of which {size_text(read)} coded" if read else title, ("codec", *heads), rows)
    skipped = [(one.name, one.skipped) for one in line_up.results if one.skipped is not None]
    for name, reason in skipped:
        console().print(Text(shown(f" {name}: {reason}")))


def _result_row(result: Result) -> tuple[str, ...]:
    speeds = (
        result.encode_gbps,
        result.encode_x_memcpy,
        result.decode_gbps,
        result.decode_x_memcpy,
    )
    raw = f"as they are: {', '.join(result.raw)}" if result.raw else ""
    cells = (NOTHING if speed is None else f"{speed:.2f}" for speed in speeds)
    name = f"{OURS} codec auto" if result.name == OURS else result.name
    return name, ratio_text(result.ratio), *cells, "*" if result.on_front else "", raw
