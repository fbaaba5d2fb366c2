"""All branches of a chat, as a tree to choose from.

In: the messages, which one is shown. Out: the message whose branch is to be shown, or None.
"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Tree
from textual.widgets.tree import TreeNode

from edgeinfer.app.sessions.records import KeptMessage
from edgeinfer.app.sessions.tree import MessageTree
from edgeinfer.app.tui.text.neutral import neutral

INDENT = 14
SIGNS = {"user": "> ", "assistant": "", "summary": "summary: "}


class BranchesScreen(Screen[int | None]):
    """The tree, with the branch that is shown in bold."""

    AUTO_FOCUS = "Tree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "back", id="branches.back")]

    def __init__(self, tree: MessageTree, current: int) -> None:
        super().__init__()
        self._messages = tree
        self._current_path = {message.number for message in tree.path(current)}
        self._current_leaf = current

    def compose(self) -> ComposeResult:
        yield Tree[int]("branches; Enter shows one")
        yield Footer()

    def on_mount(self) -> None:
        found = self.query_one(Tree)
        found.root.expand()
        found.auto_expand = False
        shown: TreeNode[int] | None = None
        left: list[tuple[TreeNode[int], KeptMessage]] = [(found.root, root) for root in reversed(self._messages.roots)]
        while left:
            parent, message = left.pop()
            children = self._messages.children(message.number)
            grown = parent.add(self._label(message), message.number, expand=True, allow_expand=len(children) > 1)
            shown = grown if message.number == self._current_leaf else shown
            below = grown if len(children) > 1 else parent  # one that simply follows stays on the same level
            left += [(below, child) for child in reversed(children)]
        if shown is not None:
            self.call_after_refresh(found.move_cursor, shown)

    def on_tree_node_selected(self, event: Tree.NodeSelected[int]) -> None:
        """One was chosen."""
        if event.node.data is not None:
            self.dismiss(event.node.data)

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss(None)

    def _label(self, message: KeptMessage) -> Text:
        words = " ".join(neutral(message.text).split())[: max(20, self.app.size.width - INDENT)] or "(no text)"
        return Text(SIGNS[message.role] + words, style="bold" if message.number in self._current_path else "dim")
