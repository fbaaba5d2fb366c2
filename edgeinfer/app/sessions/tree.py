"""The messages of a chat as a tree: every answer follows a question, and both may have siblings.

In: the messages of one session. Out: branches, children, siblings. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeinfer.app.sessions.records import KeptMessage


class MessageTree:
    """Indexes messages by parent. A message whose parent is missing counts as a root."""

    def __init__(self, messages: Iterable[KeptMessage]) -> None:
        self.messages: tuple[KeptMessage, ...] = tuple(sorted(messages, key=lambda message: message.number))
        self._by_number = {message.number: message for message in self.messages}
        self._children: dict[int | None, list[KeptMessage]] = {}
        for message in self.messages:
            self._children.setdefault(self._parent(message), []).append(message)

    @property
    def roots(self) -> tuple[KeptMessage, ...]:
        """The root messages, in order of creation."""
        return self.children(None)

    def message(self, number: int) -> KeptMessage:
        """Return a message by number. Raises KeyError if there is none."""
        return self._by_number[number]

    def has(self, number: int | None) -> bool:
        """Whether there is a message of this number."""
        return number in self._by_number

    def children(self, number: int | None) -> tuple[KeptMessage, ...]:
        """The children of a message, or the roots for None, in order of creation."""
        return tuple(self._children.get(number, ()))

    def path(self, leaf: int) -> tuple[KeptMessage, ...]:
        """The branch from the root to this message."""
        found = [self._by_number[leaf]]
        while (parent := self._parent(found[-1])) is not None and len(found) <= len(self.messages):
            found.append(self._by_number[parent])
        return tuple(reversed(found))

    def siblings(self, number: int) -> tuple[int, tuple[KeptMessage, ...]]:
        """The index of a message among its siblings, from 0, and all siblings including itself."""
        message = self._by_number[number]
        found = self.children(self._parent(message))
        return found.index(message), found

    def newest_leaf(self, number: int) -> int:
        """The newest leaf among the branches that contain a message."""
        newest, left = number, [number]
        while left:
            children = self._children.get(left.pop(), ())
            if not children:
                continue
            left.extend(child.number for child in children)
            newest = max(newest, *(child.number for child in children))
        return newest

    def newest(self) -> int | None:
        """The number of the newest message, or None."""
        return self.messages[-1].number if self.messages else None

    def _parent(self, message: KeptMessage) -> int | None:
        parent = message.parent
        return parent if parent in self._by_number and parent != message.number else None
