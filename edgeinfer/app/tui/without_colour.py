"""NO_COLOR: what colours say, said by bold, reverse and underline.

In: the environment. Out: what to construct the app with, and a style sheet. By itself Textual turns colours into greys,
and under an ansi theme into black on black; with `ansi_color` on, it leaves every colour out. What is chosen, where the
cursor is and what has the focus must be seen then too. Knows Textual's own widgets; ours carry their rules.
"""

from __future__ import annotations

from collections.abc import Mapping


def ansi_colour(environ: Mapping[str, str]) -> bool | None:
    """What `App(ansi_color=...)` is to be: True without colours, else as the theme has it."""
    return True if "NO_COLOR" in environ else None


# An OptionList draws no reverse (Textual 8.2): bold and underline stand for its cursor.
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
