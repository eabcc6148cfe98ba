"""HTML and SVG as text that is escaped unless it is known to be markup."""

import html
from collections.abc import Iterable

from orbax_gds.wording import shown

__all__ = ["Markup", "join", "tag"]


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element, well-formed as XML too.

    Args:
        name: of the element.
        children: markup as it is, other text escaped.
        attributes: `class_` stands for class, an underscore for a hyphen; None leaves one out.

    Example:
        >>> tag("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Return parts one after the other, escaped where they are not markup."""
    return Markup("".join(part if isinstance(part, Markup) else _escape(part) for part in parts))


def _escape(text: str) -> str:
    return html.escape(shown(text))


def _number(value: str | float) -> str:
    if isinstance(value, str):
        return shown(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
