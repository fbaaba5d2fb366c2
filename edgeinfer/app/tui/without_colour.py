"""NO_COLOR support: shows by bold, reverse and underline what is otherwise shown by colour.

In: the environment. Out: an argument for constructing the app, and a style sheet. By default Textual turns colours into
greys, and under an ansi theme into black on black; with `ansi_color` it omits all colours. Selection, cursor and focus
must stay visible then, too. Covers Textual's own widgets; ours define their rules themselves.
"""

from __future__ import annotations

from collections.abc import Mapping


def ansi_colour(environ: Mapping[str, str]) -> bool | None:
    """The value for `App(ansi_color=...)`: True without colours, else None to follow the theme."""
    return True if "NO_COLOR" in environ else None


# OptionList does not draw reverse (Textual 8.2), so its cursor is bold and underlined.
NO_COLOUR_CSS = """
OptionList:nocolor > .option-list--option-highlighted { text-style: bold underline; }
DataTable:nocolor > .datatable--cursor { text-style: reverse; }
DataTable:nocolor > .datatable--header { text-style: bold underline; }
Tree:nocolor > .tree--cursor { text-style: reverse; }
ListView:nocolor > ListItem.-highlight { text-style: bold underline; }
Input:nocolor > .input--cursor { text-style: reverse; }
Input:nocolor > .input--selection { text-style: reverse; }
Input:nocolor > .input--placeholder { text-style: italic; }
TextArea:nocolor .text-area--cursor { text-style: reverse; }
TextArea:nocolor .text-area--selection { text-style: reverse; }
TextArea:nocolor .text-area--placeholder { text-style: italic; }
FooterKey:nocolor .footer-key--key { text-style: bold; }
Tab:nocolor.-active { text-style: bold underline; }
ToggleButton:nocolor:focus { text-style: underline; }
Button:nocolor:focus { text-style: bold underline; }
CollapsibleTitle:nocolor:focus { text-style: bold underline; }
"""
