"""Navigation within a chat's tree and between chats: edit, fork, switch branches, open new and saved chats.

In: keys and commands. Out: another branch or chat on the screen. No text is ever lost: everything stays in the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.chat.beginning import NO_EARLIER, Beginning, last_chat
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.records import KeptMessage
from edgeinfer.app.tui.actions.answering import EDITING
from edgeinfer.app.tui.actions.calling import CallingActions
from edgeinfer.app.tui.engine_messages import EnterChat
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.tui.screens.sessions import ChosenChat


class Branching(CallingActions):
    """Mixin of the chat screen: branches and chats."""

    async def begin_as(self, beginning: Beginning) -> None:
        """Continue the last saved chat and ask a question, as far as the command line requests either."""
        if beginning.continues:
            await self.continue_last(beginning.system)
        if beginning.question:
            self.composer.put(beginning.question)
            self.composer.send()

    async def action_resume(self, argument: str = "") -> None:
        """Go on with the chat that was changed last, other than this one."""
        await self.continue_last(None)

    async def continue_last(self, system: str | None) -> None:
        """Open the most recently changed saved chat."""
        try:
            chat = last_chat(self.state.store, system, other_than=self.chat.number)
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
            return
        if chat is None or chat.number is None:
            self.tell(NO_EARLIER)
            return
        await self.open_chat(chat.number)

    async def open_chat(self, number: int, at: int | None = None) -> None:
        """Open a saved chat, optionally at one of its messages."""
        self.leave_answer()
        try:
            self.chat = Chat(self.state.store, self.state.store.session(number))
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
            return
        if at is not None and all(message.number != at for message in self.chat.branch):
            self.chat.show_through(at)
        self.engine.give(EnterChat(number))
        self.show_figures(None)  # clear the figures of the previous chat
        await self.show_branch(at=at)

    def leave_answer(self) -> None:
        """Leave the chat: stop the running request and save the text it has produced."""
        self.edited = None
        if self.writing is None:
            return
        self.engine.stop()
        self.take_text()
        writing, self.writing = self.writing, None
        self.show_prompted()
        if not writing.is_summary:
            self.keep_answer(writing.message, writing.text, "stopped", None)

    async def action_new(self, argument: str = "") -> None:
        """Start a new chat with the same settings and system prompt; the first page shows that prompt."""
        self.leave_answer()
        self.chat, self._resumable = Chat(self.state.store, system=self.chat.system), None
        self.engine.give(EnterChat(None))
        self.show_figures(None)
        await self.show_branch()
        self.composer.focus()

    async def action_edit(self, argument: str = "") -> None:
        """Put the selected question, or the last one, into the composer; sending it starts a branch."""
        if self.is_busy():
            return
        question = self.question_of(self.transcript.selected)
        if question is None:
            self.tell("there is no question to edit yet")
            return
        self.edited = question.number
        self.composer.put(question.text, question.attachments, EDITING)

    def on_composer_cancelled(self) -> None:
        """The edit was cancelled; the question is unchanged."""
        self.edited = None

    async def action_fork(self, argument: str = "") -> None:
        """Continue in a new chat from the selected message, or from the end."""
        forked = self.chat.fork(self.transcript.selected)
        self.leave_answer()
        assert forked.number is not None
        await self.open_chat(forked.number)
        self.tell("a chat of its own now; the one before stays as it is")

    async def action_previous_branch(self, argument: str = "") -> None:
        """Show the previous branch at the selected message, or at the last message with siblings."""
        await self.step_branch(-1)

    async def action_next_branch(self, argument: str = "") -> None:
        """Show the next branch at the selected message, or at the last message with siblings."""
        await self.step_branch(1)

    async def step_branch(self, by: int) -> None:
        """Show the branch `by` positions away at the selected message, or at the last message with siblings."""
        if self.is_busy():
            return
        selected = self.transcript.selected
        places = [place for place in self.chat.places if place.n_siblings > 1]
        if selected is not None:
            places = [place for place in places if place.message.number == selected]
        if not places:
            self.tell("there is no other branch here; /regen and /edit make one")
            return
        number = places[-1].message.number
        if not self.chat.step(number, by):
            self.tell("this is the last branch here" if by > 0 else "this is the first branch here")
            return
        await self.show_branch()

    def action_rename(self, argument: str = "") -> None:
        """Rename this chat."""
        if not argument:
            self.tell("which title? /rename TITLE")
            return
        self.chat.rename(argument)
        self.show_title()

    def action_tree(self, argument: str = "") -> None:
        """Show all branches."""
        from edgeinfer.app.tui.screens.branches import BranchesScreen

        if not self.chat.branch:
            self.tell("this chat is empty")
            return
        self.app.push_screen(BranchesScreen(self.chat.tree, self.chat.branch[-1].number), self.show_chosen_branch)

    async def show_chosen_branch(self, number: int | None) -> None:
        """Show the branch through a message."""
        if number is None or self.is_busy():
            return
        try:
            self.chat.show_through(number)
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
            return
        await self.show_branch(at=number)

    def action_sessions(self, argument: str = "") -> None:
        """Show the list of saved chats."""
        from edgeinfer.app.tui.screens.sessions import SessionsScreen

        self.app.push_screen(SessionsScreen(self.state.store, self.chat.number, query=argument), self.open_chosen_chat)

    action_search = action_sessions

    async def open_chosen_chat(self, chosen: ChosenChat | None) -> None:
        """Open the chosen chat. If none was chosen, the open chat may have been deleted or renamed: update it."""
        if chosen is not None:
            await self.open_chat(chosen.session, chosen.message)
            return
        try:
            is_deleted = self.chat.reread()
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
            return
        if is_deleted:
            await self.action_new()
        else:
            self.show_title()

    def question_of(self, number: int | None) -> KeptMessage | None:
        """The question at or before a message, or the last one."""
        branch = self.chat.branch
        if number is not None:
            branch = branch[
                : next((i + 1 for i, message in enumerate(branch) if message.number == number), len(branch))
            ]
        return next((message for message in reversed(branch) if message.role == "user"), None)
