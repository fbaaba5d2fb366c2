"""Folders to ask about: what is sent of a folder that is larger than the context, and of one that every question is
about.

In: a draft with its enclosures; `/folder`. Out: the draft as it is sent, why it cannot be, what to say about it. Called
from threads where it reads files or counts tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from textual.worker import get_current_worker

from edgeinfer.app.chat.attachments import attach
from edgeinfer.app.chat.enclosures import Countable, Enclosure, FittedDraft, MessageDraft
from edgeinfer.app.chat.folder_search import FolderSearch
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.actions.talking import Talking, why_unread
from edgeinfer.errors import EdgeInferError
from edgeinfer.text_values import user_path

WHOLE_SHARE = 0.5
"""Share of the context for parts of a folder that was attached."""
EACH_SHARE = 0.25
"""Share of the context for parts of the folder that every question is about."""
LEAST_TOKENS = 64
EARLY_BYTES = 8192
"""Drafts with more attachments than this wait for a model that is being opened: they may not fit."""
WAITS = "sent once the model is open, which counts the tokens of what is attached; Escape takes it back"
LOOK_S = 0.05


class FolderActions(Talking):
    """Mixin of the chat screen: `/folder`, and drafts that are fitted to the context before they are sent."""

    asked_folder: Path | None = None
    """The folder that every question is about, or None."""

    def action_folder(self, argument: str = "") -> None:
        """Ask about a folder from now on: /folder PATH; none ends it, nothing shows it."""
        if argument and argument.lower() != "none":
            path = user_path(argument)
            if not path.is_dir():
                self.tell(f"{argument} is no folder; /attach takes files", is_error=True)
                return
            self.asked_folder = path
        elif argument:
            self.asked_folder = None
        self.composer.always_fits = self.asked_folder is not None
        folder = self.asked_folder
        said = "no folder is asked about; /folder PATH names one"
        if folder is not None:
            said = f"each question gets the parts of {folder} that suit it; /folder none ends that"
        self.tell(said)

    def fit_draft(self, draft: MessageDraft, enclosures: Sequence[Enclosure]) -> FittedDraft:
        """The draft as it is sent: with parts in place of folders that are too large, and of the asked folder."""
        notices: list[str] = []
        if self.asked_folder is not None or sum(each.n_bytes for each in draft.attachments) > EARLY_BYTES:
            self._wait_for_model()
        try:
            draft = self._with_asked_folder(draft, notices)
            reason = self.why_unfit(draft)
            folders = [item for item in enclosures if item.folder]
            if reason is not None and folders and self.state.model is not None:
                draft = self._with_parts(draft, enclosures, notices)
                reason = self.why_unfit(draft)
        except EdgeInferError as error:
            return FittedDraft(draft, str(error))
        return FittedDraft(draft, reason, tuple(notices))

    def _wait_for_model(self) -> None:
        """Wait while a model is being opened, which counts tokens; Escape takes the draft back meanwhile."""
        worker = get_current_worker()
        if self.state.model is None and self.opening.step is not None:
            self.app.call_from_thread(self.tell, WAITS)
        while self.state.model is None and self.opening.step is not None and not worker.is_cancelled:
            time.sleep(LOOK_S)

    def count_tokens(self, text: Countable) -> int | None:
        """The number of tokens of a text, an image or a sound; None while no model is open that reads it.

        Called from threads.
        """
        model = self.state.model
        if model is None:
            return None
        if not isinstance(text, str):
            return self.medium_tokens(text)
        return len(model.tokenize(text, add_special=False, parse_special=False))

    def why_unfit(self, draft: MessageDraft) -> str | None:
        """Why a draft can never be answered, or None if it can or if that is unknown. Called from threads."""
        from edgeinfer.app.chat.context import why_too_long
        from edgeinfer.app.sessions.conversation import content_of

        model = self.state.model
        if model is None:
            return None
        if unread := why_unread(model.info, draft.attachments):
            return unread
        system = [message for message in self.chat.prompt() if message.role == "system"]
        names = [attachment.name for attachment in draft.attachments]
        try:
            return why_too_long(model, system, content_of(draft.text, draft.attachments), names)
        except EdgeInferError:  # reported when the draft is sent
            return None

    def _with_asked_folder(self, draft: MessageDraft, notices: list[str]) -> MessageDraft:
        """The draft with parts of the folder that every question is about. Raises EdgeInferError."""
        folder = self.asked_folder
        if folder is None or self.state.model is None:
            return draft
        read = attach(folder)
        known = {each.name for message in self.chat.branch for each in message.attachments}
        n_tokens = int(self.state.model.info.n_context * EACH_SHARE)
        search = FolderSearch(read.folder or str(folder), read.attachments, n_tokens)
        found = search.chosen(draft.text, self.count_tokens, known)
        if found is None:
            notices.append(f"nothing of {folder} fits beside the question")
            return draft
        return replace(draft, attachments=(*draft.attachments, *found.attachments))

    def _with_parts(self, draft: MessageDraft, enclosures: Sequence[Enclosure], notices: list[str]) -> MessageDraft:
        """The draft with parts of its folders in place of all their files."""
        assert self.state.model is not None
        others = [each for item in enclosures if not item.folder for each in item.attachments if each.medium is None]
        n_others = sum(self.count_tokens(text) or 0 for text in [draft.text, *(each.text for each in others)])
        folders = [item for item in enclosures if item.folder]
        room = int(self.state.model.info.n_context * WHOLE_SHARE) - n_others
        kept: list[Attachment] = []
        for item in enclosures:
            if not item.folder:
                kept += item.attachments
                continue
            n_tokens = max(LEAST_TOKENS, room // len(folders))
            found = FolderSearch(item.folder, item.attachments, n_tokens).chosen(draft.text, self.count_tokens)
            if found is None:
                return draft
            kept += found.attachments
            notices.append(found.notice)
        return replace(draft, attachments=tuple(kept))
