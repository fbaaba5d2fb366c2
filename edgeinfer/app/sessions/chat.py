"""A saved chat as the UI sees it: the branch on display and the operations that change it.

In: a store, the user's messages, answers. Out: messages, written to the store at once. Nothing is ever overwritten:
regenerating an answer or editing a question adds a sibling. Knows no terminal and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeinfer.app.sessions.conversation import messages_of, told_of, told_text
from edgeinfer.app.sessions.records import (
    LOST,
    Attachment,
    Figures,
    KeptMessage,
    KeptSession,
    MessageTree,
    Role,
    State,
    ToolRound,
)
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.sessions.written_beside import WrittenBeside
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.models.text import Message


@dataclass(frozen=True, slots=True)
class BranchPlace:
    """A message of the displayed branch and its position among its siblings: `index` (from 1) of `n_siblings`."""

    message: KeptMessage
    index: int
    n_siblings: int


class Chat:
    """The open chat. It is added to the store with its first message: an empty chat leaves no trace."""

    def __init__(self, store: SessionStore, session: KeptSession | None = None, *, system: str | None = None) -> None:
        self._store = store
        self._session = session
        self._system = system if session is None else session.system
        self._tree = MessageTree(() if session is None else store.messages(session.number))
        self._leaf: int | None = None
        if session is not None:
            self._leaf = session.leaf if self._tree.has(session.leaf) else self._tree.newest()

    @property
    def number(self) -> int | None:
        """The chat's number in the store, or None while it is empty."""
        return None if self._session is None else self._session.number

    @property
    def title(self) -> str:
        return "" if self._session is None else self._session.title

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        if self._session is not None:
            self._store.set_system(self._session.number, text)
        self._system = text

    @property
    def tree(self) -> MessageTree:
        return self._tree

    @property
    def branch(self) -> tuple[KeptMessage, ...]:
        """The messages of the displayed branch, oldest first."""
        return () if self._leaf is None else self._tree.path(self._leaf)

    @property
    def places(self) -> tuple[BranchPlace, ...]:
        """The messages of the displayed branch with their positions among their siblings."""
        return tuple(BranchPlace(message, *self.place(message.number)) for message in self.branch)

    def place(self, number: int) -> tuple[int, int]:
        """The position of a message among its siblings, from 1, and the number of siblings including itself."""
        index, siblings = self._tree.siblings(number)
        return index + 1, len(siblings)

    def message(self, number: int) -> KeptMessage:
        """Return a message by number. Raises KeyError if there is none."""
        return self._tree.message(number)

    def prompt(self, upto: int | None = None) -> list[Message]:
        """The conversation as the model gets it: the whole branch, or up to and including the message `upto`."""
        branch = self.branch if upto is None else self._tree.path(upto)
        return messages_of(branch, self._system)

    def ask(self, text: str, attachments: Sequence[Attachment], model: str | None) -> tuple[KeptMessage, KeptMessage]:
        """Add a question to the end of the branch. Returns it with its answer, which is still empty."""
        question = self._add(self._leaf, "user", text, attachments=tuple(attachments))
        return question, self._add(question.number, "assistant", "", state="writing", model=model)

    def ask_instead(
        self, number: int, text: str, attachments: Sequence[Attachment], model: str | None
    ) -> tuple[KeptMessage, KeptMessage]:
        """Add a new version of a question as its sibling; the old question stays. Returns it with its empty answer."""
        question = self._add(self.message(number).parent, "user", text, attachments=tuple(attachments))
        return question, self._add(question.number, "assistant", "", state="writing", model=model)

    def answer_again(self, model: str | None, number: int | None = None) -> KeptMessage:
        """Add another answer to the question at or before `number`, or to the last question.

        Raises BadSetting if there is no question.
        """
        question = self._question_before(number)
        return self._add(question.number, "assistant", "", state="writing", model=model)

    def continue_answer(self) -> KeptMessage:
        """Reopen the last answer to continue it; a partial character at its end is dropped and generated again.

        Raises BadSetting if the branch does not end with an answer.
        """
        last = self.branch[-1] if self.branch else None
        is_empty = last is None or not (last.text.strip(LOST + " \n") or last.has_calls)
        if last is None or last.role != "assistant" or is_empty:
            raise BadSetting("there is no answer to continue; ask something first")
        text = last.text if last.state == "whole" else last.text.rstrip(LOST)
        self._store.write_text(last.number, text, "writing")
        self._keep(replace(last, text=text, state="writing"))
        return self.message(last.number)

    def note_rounds(self, number: int, rounds: tuple[ToolRound, ...]) -> None:
        """Store the calls of tools that an answer has made so far."""
        self._keep(replace(self.message(number), rounds=rounds))
        self._store.write_rounds(number, rounds)

    def finish(
        self, number: int, text: str, state: State, figures: Figures | None, beside: WrittenBeside | None = None
    ) -> KeptMessage:
        """Store the final text of an answer, complete or not; without `beside`, what it has of that stays."""
        before = self.message(number)
        finished = replace(before, text=text, state=state, figures=figures, beside=beside or before.beside)
        self._keep(finished)
        self._store.finish(number, text, state, figures, finished.beside)
        return finished

    def told(self) -> list[Message]:
        """The messages that the model gets, one to one; a summary of earlier messages comes first."""
        from edgeinfer.models.text import Message

        return [Message(kept.role, told_text(kept)) for kept in told_of(self.branch)]

    def compacted(self, summary: str, n_summarised: int, model: str | None) -> None:
        """Start a branch with a summary of the first `n_summarised` of `told`, then the rest. The old branch stays."""
        kept = told_of(self.branch)[n_summarised:]
        leaf = self._add(None, "summary", summary, model=model).number
        for message in kept:
            leaf = self._copy(message, leaf)
        self.show(leaf)

    def fork(self, upto: int | None = None) -> Chat:
        """Copy the branch, up to and including the message `upto`, into a new chat. This chat is left unchanged."""
        branch = self.branch if upto is None else self._tree.path(upto)
        if not branch:
            raise BadSetting("there is nothing to fork yet; ask something first")
        forked = Chat(self._store, system=self._system)
        leaf: int | None = None
        for message in branch:
            leaf = forked._copy(message, leaf)
        if self.title:
            forked.rename(f"{self.title} (fork)")
        return forked

    def successor(self) -> Chat:
        """A new, empty chat with the same system prompt."""
        return Chat(self._store, system=self._system)

    def rename(self, title: str) -> None:
        """Set the title. Raises BadSetting if the chat is empty."""
        if self._session is None:
            raise BadSetting("an empty chat has no title; ask something first")
        self._store.rename(self._session.number, title)
        self._session = self._store.session(self._session.number)

    def show(self, leaf: int | None) -> None:
        """Display the branch that ends at `leaf`."""
        if self._session is not None:
            self._store.set_leaf(self._session.number, leaf)
        self._leaf = leaf

    def show_through(self, number: int) -> None:
        """Display the newest branch that contains a message."""
        self.show(self._tree.newest_leaf(number))

    def step(self, number: int, by: int) -> bool:
        """Display the branch through the sibling `by` positions away. Returns False if there is no such sibling."""
        index, siblings = self._tree.siblings(number)
        if not 0 <= index + by < len(siblings):
            return False
        self.show_through(siblings[index + by].number)
        return True

    def _question_before(self, number: int | None) -> KeptMessage:
        branch = self.branch if number is None else self._tree.path(number)
        for message in reversed(branch):
            if message.role == "user":
                return message
        raise BadSetting("there is no question to answer again; ask something first")

    def _copy(self, message: KeptMessage, parent: int | None) -> int:
        state: State = "stopped" if message.state == "writing" else message.state
        return self._add(
            parent,
            message.role,
            message.text,
            state=state,
            model=message.model,
            figures=message.figures,
            attachments=message.attachments,
            rounds=message.rounds,
            beside=message.beside,
        ).number

    def _add(
        self,
        parent: int | None,
        role: Role,
        text: str,
        *,
        state: State = "whole",
        model: str | None = None,
        figures: Figures | None = None,
        attachments: tuple[Attachment, ...] = (),
        rounds: tuple[ToolRound, ...] = (),
        beside: WrittenBeside | None = None,
    ) -> KeptMessage:
        if self._session is None:
            self._session = self._store.create(self._system, model)
        message = self._store.add(
            self._session.number,
            parent,
            role,
            text,
            state=state,
            model=model,
            figures=figures,
            attachments=attachments,
            rounds=rounds,
            beside=beside,
        )
        self._session = self._store.session(self._session.number)
        self._tree = MessageTree((*self._tree.messages, message))
        self._leaf = message.number
        return message

    def _keep(self, changed: KeptMessage) -> None:
        self._tree = MessageTree(tuple(changed if m.number == changed.number else m for m in self._tree.messages))

    def reread(self) -> bool:
        """Reread the session, for a title that was changed elsewhere. Returns True if the chat has been deleted."""
        if self._session is None:
            return False
        self._session = self._store.session(self._session.number)
        return self._session.deleted_s is not None
