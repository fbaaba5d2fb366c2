"""Copying messages and code fences, saving them to files, and exporting and importing chats.

In: keys and commands. Out: the clipboard, files. Notices claim no more than is known: text sent to a terminal's
clipboard may not arrive.
"""

from __future__ import annotations

from pathlib import Path

from textual import work
from textual.actions import SkipAction

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.exporting import export_chat, export_path, fence_suffix, free_name, save_text
from edgeinfer.app.sessions.importing import import_chats
from edgeinfer.app.tui.actions.branching import Branching
from edgeinfer.app.tui.text.markdown import Fence
from edgeinfer.app.tui.text.thinking import shown_fences
from edgeinfer.errors import EdgeInferError
from edgeinfer.text_values import user_path

WHICH_FILE = (
    "which file? /import PATH reads what /export wrote, and chats of ChatGPT, Claude, Open WebUI, LM Studio, aichat "
    "and oterm"
)


class Copying(Branching):
    """Mixin of the chat screen: copy, save, export, import."""

    def action_copy(self, argument: str = "") -> None:
        """Copy the source text of the selected message, or of the last answer."""
        text = self.selected_text()
        if text:
            self.copy(text)
        else:
            self.tell("there is nothing to copy yet")

    def action_copy_text(self) -> None:
        """Copy the text selected with the mouse; without a selection, leave the key to other bindings."""
        text = self.get_selected_text()
        if not text:
            raise SkipAction
        self.copy(text)

    def action_copy_fence(self, argument: str = "") -> None:
        """Copy a code fence of the selected message: the one with this number, or the last one."""
        if (fence := self.chosen_fence(argument)) is not None:
            self.copy(fence.text)

    def action_save_fence(self, argument: str = "") -> None:
        """Save a code fence to a file: /save_fence [NUMBER] [PATH]."""
        number, _, path = argument.partition(" ") if argument[:1].isdigit() else ("", "", argument)
        if (fence := self.chosen_fence(number)) is None:
            return
        target = user_path(path.strip()) if path.strip() else free_name(Path(), "code", fence_suffix(fence.language))
        self.save(target, fence.text)

    def action_export(self, argument: str = "") -> None:
        """Export the chat: as JSON if the path ends in .json, else as Markdown."""
        if self.chat.number is None:
            self.tell("this chat is empty")
            return
        path = Path(argument) if argument else export_path(self.chat.title, Path())
        self.write_export(self.chat.number, path)

    @work(thread=True, group="files")
    def write_export(self, number: int, path: Path) -> None:
        try:
            path = export_chat(self.state.store, number, path)
        except EdgeInferError as error:
            self.app.call_from_thread(self.tell, str(error), is_error=True)
            return
        self.app.call_from_thread(self.tell, f"exported to {path}")

    def action_import(self, argument: str = "") -> None:
        """Import a chat from a file and show it."""
        if argument:
            self.tell(f"reading {argument} …")
            self.read_import(user_path(argument))
        else:
            self.tell(WHICH_FILE)

    @work(thread=True, exclusive=True, group="files")
    def read_import(self, path: Path) -> None:
        """Import a file in a worker thread, then open the chat."""
        try:
            numbers = import_chats(self.state.store, path)
        except EdgeInferError as error:
            self.app.call_from_thread(self.tell, str(error), is_error=True)
            return
        if len(numbers) > 1:
            said = f"{len(numbers)} chats imported; the newest is open, Ctrl+O lists them all"
            self.app.call_from_thread(self.tell, said)
        self.app.call_from_thread(lambda: self.run_worker(self.open_chat(numbers[-1]), group="chats"))

    @work(group="clipboard")
    async def copy(self, text: str) -> None:
        """Copy a text by whatever method works in this environment."""
        from edgeinfer.app.tui.clipboard import copy

        copied = await copy(self.app, text)
        self.tell(copied.notice + ("; /export writes a file" if copied.offer_file else ""))

    def save(self, path: Path, text: str) -> None:
        """Write a text to a new file."""
        try:
            path = save_text(path, text)
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
        else:
            self.tell(f"saved as {path}")

    def selected_text(self) -> str:
        """The text of the selected message, or of the last answer."""
        number = self.transcript.selected
        branch = self.chat.branch
        if self.writing is not None and number in (None, self.writing.message):
            return self.writing.text
        for message in reversed(branch):
            if message.number == number or (number is None and message.role == "assistant"):
                return message.text
        return ""

    def chosen_fence(self, number: str) -> Fence | None:
        """Fence `number` of the selected message, from 1, or its last fence. Shows a notice if there is none."""
        fences = shown_fences(self.selected_text())
        if not fences:
            self.tell("this message has no code block")
            return None
        if not number.strip():
            return fences[-1]
        if not number.strip().isdigit() or not 1 <= int(number) <= len(fences):
            self.tell(f"this message has {counted(len(fences), 'code block')}; say 1 to {len(fences)}")
            return None
        return fences[int(number) - 1]
