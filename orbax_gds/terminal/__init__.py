"""Tables on a terminal: of what was inspected, of a save, and of what was measured."""

from orbax_gds.terminal.comparison import comparison_text
from orbax_gds.terminal.item import item_text
from orbax_gds.terminal.line_up import line_up_text
from orbax_gds.terminal.save_report import save_report_text

__all__ = ["comparison_text", "item_text", "line_up_text", "save_report_text"]
