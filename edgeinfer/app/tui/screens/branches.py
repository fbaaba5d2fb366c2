"""The branches screen: all branches of a chat, as a tree to choose from.

In: the messages, and the end of the displayed branch. Out: the message whose branch to display, or None. Siblings are
listed below each other, numbered; the messages that follow a sibling are indented under it.
"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Tree
from textual.widgets.tree import TreeNode

from edgeinfer.app.sessions.records import KeptMessage, MessageTree
from edgeinfer.app.tui.text.neutral import neutral

INDENT = 14
GUIDE_CELLS = 2
HEADING = "● you are here; Enter shows a branch"
HERE, ELSEWHERE = "● ", "  "
SIGNS = {"user": "> ", "assistant": "", "summary": "summary: "}


class BranchesScreen(Screen[int | None]):
    """The tree, with a mark before each message of the displayed branch."""

    AUTO_FOCUS = "Tree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "back", id="branches.back")]

    def __init__(self, tree: MessageTree, current: int) -> None:
        super().__init__()
        self._messages = tree
        self._current_path = {message.number for message in tree.path(current)}
        self._current_leaf = current

    def compose(self) -> ComposeResult:
        yield Tree[int](HEADING)
        yield Footer()

    def on_mount(self) -> None:
        found = self.query_one(Tree)
        found.root.expand()
        found.auto_expand, found.guide_depth = False, GUIDE_CELLS
        shown: TreeNode[int] | None = None
        left: list[tuple[TreeNode[int], KeptMessage]] = [(found.root, root) for root in reversed(self._messages.roots)]
        while left:
            parent, message = left.pop()
            children = self._messages.children(message.number)
            has_below = len(children) > 1 or bool(children and self._place(message))
            grown = parent.add(self._label(message), message.number, expand=True, allow_expand=has_below)
            shown = grown if message.number == self._current_leaf else shown
            below = grown if has_below else parent  # an only child stays on the same level
            left += [(below, child) for child in reversed(children)]
        if shown is not None:
            self.call_after_refresh(found.move_cursor, shown)

    def on_tree_node_selected(self, event: Tree.NodeSelected[int]) -> None:
        """A message was chosen."""
        if event.node.data is not None:
            self.dismiss(event.node.data)

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)

    def _place(self, message: KeptMessage) -> str:
        """The number of a message among its siblings, such as "1/2 "; "" if it has none."""
        index, siblings = self._messages.siblings(message.number)
        return f"{index + 1}/{len(siblings)} " if len(siblings) > 1 else ""

    def _label(self, message: KeptMessage) -> Text:
        is_here = message.number in self._current_path
        text = message.text.strip() or ", ".join(one.name for one in message.attachments)
        words = " ".join(neutral(text).split())[: max(20, self.app.size.width - INDENT)] or "(no text)"
        beside = message.beside
        kept = f"✓ {beside.reason} · " if beside is not None and beside.is_kept else ""
        head = f"{HERE if is_here else ELSEWHERE}{self._place(message)}{kept}{SIGNS[message.role]}"
        return Text(head + words, style="bold" if is_here else "dim")
