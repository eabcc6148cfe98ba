"""Run a benchmark: `python -m benchmarks.run codec --quick`, from the repository's root.

It measures the installed package, which must be an editable install with the extra [bench].
The result goes to stdout as Markdown (`--json`: as JSON) and to `.cache/benchmarks/<name>.json`;
with `--record` to `benchmarks/results/` as well, and `benchmarks/RESULTS.md` is written anew, and
those parts of README.md that come from results alone.
Exit status: 0 when every bar passes, 1 when one fails or could not be measured, 2 for a wrong call.
"""

import argparse
import sys
import types
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import codec, delta, leaves, restore, save, training
from benchmarks.machine import machine_card
from benchmarks.progress import say
from benchmarks.result import RESULTS_DIRECTORY, Result, read_result, with_reasons, write_result
from benchmarks.table import result_markdown

ROOT = Path(__file__).parents[1]
SCRATCH_DIRECTORY = ROOT / ".cache" / "benchmarks"
RESULTS_MARKDOWN = ROOT / "benchmarks" / "RESULTS.md"
README = ROOT / "README.md"

# A benchmark is a module with TITLE, TABLES, add_arguments(parser), measure(arguments); where it
# has picture(result), the SVG that this returns stands beside the recorded result; where it has
# readme_part(result), that is what README.md holds between <!-- name --> and <!-- /name -->.
BENCHMARKS: dict[str, types.ModuleType] = {
    "codec": codec,
    "delta": delta,
    "leaves": leaves,
    "restore": restore,
    "save": save,
    "training": training,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    chosen = _parser().parse_args(arguments)
    if chosen.benchmark == "render":
        render(RESULTS_DIRECTORY)
        return 0
    chosen.directory.mkdir(parents=True, exist_ok=True)
    result = run_benchmark(chosen)
    write_result(result, SCRATCH_DIRECTORY / f"{chosen.benchmark}.json")
    if chosen.record is not None:
        suffix = f"-{chosen.record}" if chosen.record else ""
        path = RESULTS_DIRECTORY / f"{chosen.benchmark}{suffix}.json"
        if path.exists():
            result = with_reasons(result, read_result(path))
        write_result(result, path)
        render(RESULTS_DIRECTORY)
    print(msgspec.json.encode(result).decode() if chosen.json else _markdown(result))
    failed = [bar.name for bar in result.bars if bar.verdict != "pass"]
    for name in failed:
        say(f"bar not met: {name}")
    return 1 if failed else 0


def run_benchmark(chosen: argparse.Namespace) -> Result:
    """Measure the chosen benchmark and describe the machine."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = machine_card(chosen.directory)
    rows, bars, notes = BENCHMARKS[chosen.benchmark].measure(chosen)
    apart = ("benchmark", "directory", "record", "json", "state", "run", "methods", "lock")
    settings = {name: value for name, value in vars(chosen).items() if name not in apart}
    return Result(
        benchmark=chosen.benchmark,
        started=started,
        settings=settings,
        notes=notes,
        machine=machine,
        rows=rows,
        bars=bars,
    )


def results_markdown(directory: Path) -> str:
    """Write every recorded result of a directory as one Markdown page."""
    parts = [
        "# Results\n",
        "Written by `python -m benchmarks.run render` from the raw samples in `results/`. Rows "
        "that lose stay; a bar that fails says so. GB/s and GB are 1e9.\n",
    ]
    for path in sorted(directory.glob("*.json")):
        result = read_result(path)
        picture = f"results/{path.stem}.svg" if picture_of(result) else None
        parts.append(_markdown(result, picture))
    return "\n".join(parts)


def picture_of(result: Result) -> str | None:
    """Return the picture of a result as SVG, None where its benchmark has none."""
    draw = getattr(BENCHMARKS[result.benchmark], "picture", None)
    return draw and draw(result)


def render(directory: Path) -> None:
    """Write RESULTS.md, and a picture beside every result of a benchmark that has one."""
    for path in directory.glob("*.json"):
        picture = picture_of(read_result(path))
        if picture:
            path.with_suffix(".svg").write_text(picture)
    RESULTS_MARKDOWN.write_text(results_markdown(directory))
    README.write_text(filled_in(README.read_text(), directory))


def filled_in(text: str, directory: Path) -> str:
    """Return a text with the parts that come from the recorded results of a directory."""
    for name, module in BENCHMARKS.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        path = directory / f"{name}.json"
        if hasattr(module, "readme_part") and begin in text and path.exists():
            head, _, rest = text.partition(begin)
            tail = rest.partition(end)[2]
            text = head + begin + module.readme_part(read_result(path)) + end + tail
    return text


def _markdown(result: Result, picture: str | None = None) -> str:
    module = BENCHMARKS[result.benchmark]
    return result_markdown(result, module.TABLES, title=module.TITLE, picture=picture)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(name, help=module.TITLE)
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
        command.add_argument(
            "--record",
            nargs="?",
            const="",
            metavar="LABEL",
            help="keep the result in benchmarks/results, under a label if given",
        )
        command.add_argument(
            "--directory",
            type=Path,
            default=SCRATCH_DIRECTORY,
            help="where the files are written that are measured (.cache/benchmarks)",
        )
    commands.add_parser("render", help="write RESULTS.md from the recorded results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
