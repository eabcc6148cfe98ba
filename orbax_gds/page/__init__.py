"""A page about an item: one HTML file without scripts, with nothing to fetch."""

from orbax_gds.page.document import page

__all__ = ["page"]
