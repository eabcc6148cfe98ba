"""`orbax-gds convert`: a full step, a file of safetensors, a plain Orbax checkpoint, and back."""

import os
from pathlib import Path as FilePath
from typing import Literal

import click

from orbax_gds.commands.printing import json_option, print_json, progress_bar
from orbax_gds.errors import Exists, NotFound, Unsupported
from orbax_gds.exchange import from_safetensors, to_safetensors
from orbax_gds.full_copy import copy_full
from orbax_gds.item import Item
from orbax_gds.listing import find_item, is_item, list_items
from orbax_gds.safetensors_file import is_safetensors
from orbax_gds.wording import shown

__all__ = ["convert"]

Kind = Literal["ogds", "safetensors", "orbax"]
_KINDS: tuple[Kind, ...] = ("ogds", "safetensors", "orbax")
_TREE_METADATA = "_METADATA"  # Orbax's mark of an item that holds a PyTree


@click.command(
    short_help="Write a full step, safetensors or a plain Orbax checkpoint, or read one."
)
@click.argument("source", metavar="PATH", type=click.Path(path_type=FilePath))
@click.argument("out", type=click.Path(path_type=FilePath))
@click.option(
    "--to",
    "kind",
    type=click.Choice(_KINDS),
    help="What OUT becomes; safetensors where it ends so, else ogds.",
)
@json_option
def convert(source: FilePath, out: FilePath, kind: Kind | None, as_json: bool) -> None:
    """Write what PATH holds to OUT, where nothing is yet. Every bit stays, or it is an error.

    PATH is an item of ours, a step with one, or a root, which means its latest step; a
    .safetensors file; or an item or step of Orbax's own. What it is is seen from its content.

    OUT becomes by --to

    \b
    ogds         a full step that needs no other: an item if PATH is one or a
                 file, else a step with an item of the same name
    safetensors  a file; names are the keys joined by "."
    orbax        an item that Orbax restores without this package; tuples
                 and custom nodes become lists and dicts, custom ones that are
                 empty None

    Memory is bounded, but for Orbax's checkpoints, which are held whole. Orbax alone needs jax.
    """
    kind = kind or ("safetensors" if out.suffix == ".safetensors" else "ogds")
    if os.path.lexists(out):
        raise Exists(f"{out} exists already. Give another place, or delete it.")
    if source.is_file():
        _from_file(source, out, kind)
    elif (foreign := _orbax_item(source)) is not None:
        _only_ours(foreign, kind)
        place = out if foreign == source else out / foreign.name
        _keep_to_processors()
        from orbax_gds.orbax_exchange import from_orbax  # needs jax, which takes seconds

        from_orbax(foreign, place)
    else:
        _from_ours(source, out, kind)
    if as_json:
        print_json({"path": str(source), "out": str(out), "kind": kind})
    click.echo(shown(f"{out}: written as {kind}."), err=True)


def _from_file(source: FilePath, out: FilePath, kind: Kind) -> None:
    if not is_safetensors(source):
        raise Unsupported(f"{source} is no file of safetensors. Give one, a step or an item.")
    _only_ours(source, kind)
    with progress_bar(shown(f"Converting {source.name}")) as progress:
        from_safetensors(source, out, progress=progress)


def _only_ours(source: FilePath, kind: Kind) -> None:
    if kind != "ogds":
        raise Unsupported(
            f"{source} is no item of ours. Convert it --to ogds, and that --to {kind}."
        )


def _from_ours(source: FilePath, out: FilePath, kind: Kind) -> None:
    path = find_item(source)
    with Item(path) as item, progress_bar(shown(f"Converting {path.name}")) as progress:
        if kind == "ogds":
            copy_full(item, out if is_item(source) else out / path.name, progress=progress)
        elif kind == "safetensors":
            to_safetensors(item, out, progress=progress)
        else:
            _keep_to_processors()
            from orbax_gds.orbax_exchange import to_orbax  # needs jax, which takes seconds

            to_orbax(item, out)


def _keep_to_processors() -> None:
    """Leave accelerators, and their memory, to others, where jax is only used to convert."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _orbax_item(source: FilePath) -> FilePath | None:
    """Return the item of Orbax's own that a directory is, or holds; None if it is not Orbax's."""
    if not source.is_dir():
        raise NotFound(f"There is nothing at {source}. Give a file, a step, an item or a root.")
    if _is_orbax(source):
        return source
    if is_item(source) or list_items(source):
        return None
    found = sorted(child for child in source.iterdir() if child.is_dir() and _is_orbax(child))
    if len(found) > 1:
        listed = "\n".join(f"  {path}" for path in found)
        raise NotFound(f"{source} holds several items. Give one of them:\n{listed}")
    return found[0] if found else None


def _is_orbax(directory: FilePath) -> bool:
    return (directory / _TREE_METADATA).is_file() and not is_item(directory)
