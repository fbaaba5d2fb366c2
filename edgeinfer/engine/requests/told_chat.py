"""A conversation as a model is told it: the text that its template makes, and the tokens of that.

In: messages, functions, template variables. Out: text or tokens, up to where the answer begins or is continued. Special
tokens that are spelled in messages, results, functions and variables stay text, but the marks of thoughts and calls in
earlier answers. Knows no context length and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from edgeinfer.engine.requests.conversation import ASSISTANT, SYSTEM_ROLES, Messages, partial_tokens, split_partial
from edgeinfer.engine.requests.media_prompts import (
    IMAGE_PART,
    NO_MEDIA,
    Modalities,
    NamedTile,
    PlacedMedia,
    bare,
    marked_as_text,
    placed,
    with_marks,
)
from edgeinfer.engine.requests.module_prompts import NO_MODULES, Module, ModuleMarks
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting, BadTemplate
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import ThoughtFormat, thoughts_of
from edgeinfer.models.text.tool_formats import format_of
from edgeinfer.models.text.tools import with_objects
from edgeinfer.models.text.written_marks import NO_STAND_INS, StandIns

Known = Callable[[Sequence[int]], Sequence[int]]
"""Given the first tokens of a text, returns the tokens read or generated of it, including those; () if unknown."""

OWN_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "name", "calls_in_words"})
"""Names that `ChatTemplate.render` sets itself, so they cannot be template variables."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is told. `parse_special`: special tokens spelled in its texts become those tokens.

    `begins_answer`: the text ends with the beginning of an answer. `modules`: those whose marks the messages have.
    """

    tools: ToolUse | None
    variables: Mapping[str, Any]
    parse_special: bool = False
    begins_answer: bool = True
    modules: ModuleMarks = NO_MODULES


@dataclass(frozen=True)
class ChatTeller:
    """Tells a model conversations, with its tokenizer and template. `system`: for those without a system prompt.

    `modalities`: what it reads besides text; None: nothing.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    system: str = ""
    modalities: Modalities | None = None

    @cached_property
    def thoughts(self) -> ThoughtFormat | None:
        """How the model sets thoughts apart from answers; None if it has none that its template knows."""
        return next(filter(None, map(thoughts_of, self.template.sources.values())), None)

    def text(self, messages: Messages, options: ChatOptions) -> str:
        """The text of a conversation."""
        before, partial = split_partial([Message.of(message) for message in messages])
        text, stand_ins, media = self._text(before, options)
        text = "".join(
            self.tokenizer.decode(part.tokens) if isinstance(part, Module) else part
            for part in options.modules.split(stand_ins.shown(media.shown(text)))
        )
        return "".join(self._with_closed_thought(text, partial)) if partial else text

    def tokens(self, messages: Sequence[Message], known: Known, options: ChatOptions) -> list[int]:
        """The tokens of a conversation; a partial answer is built from `known` tokens as far as they agree with it."""
        before, partial = split_partial(messages)
        text, stand_ins, media = self._text(before, options)
        if partial:
            text, partial = self._with_closed_thought(text, partial)
        parts = media.split(text) if media else options.modules.split(text)
        head = self._head(parts, stand_ins)
        if not partial:
            return head
        kept = None if options.parse_special else self._answer_marks
        return head + partial_tokens(self.tokenizer, head, partial, known(head), kept)

    def _head(self, parts: Iterator[str | Module | NamedTile], stand_ins: StandIns) -> list[int]:
        """The tokens of a rendered text, with the names of modules and of rows in place of their marks."""
        first = next(parts)
        assert isinstance(first, str)
        tokens = self.tokenizer.encode_rendered(first, stand_ins)
        for part in parts:
            if isinstance(part, str):
                tokens += self.tokenizer.encode(part, add_special=False, goes_on=True, stand_ins=stand_ins)
            else:
                tokens += part.names
        return tokens

    def new_marks(self, messages: Messages) -> list[str]:
        """The special tokens that are spelled in what was said since the last answer."""
        found: list[str] = []
        for message in reversed([Message.of(message) for message in messages]):
            if message.role == ASSISTANT:
                break
            found = [*self.tokenizer.marks.of(message.text), *found]
        return list(dict.fromkeys(found))

    @cached_property
    def _answer_marks(self) -> frozenset[str]:
        """The special tokens of thoughts and calls, which an answer may have."""
        form = self.thoughts
        texts = [] if form is None else [form.begin, form.end]
        for found in map(format_of, self.template.sources.values()):
            texts += [] if found is None else [found[1].trigger, found[1].begin, found[1].end]
        return frozenset(mark for text in texts for mark in self.tokenizer.marks.of(text))

    def _text(self, messages: Sequence[Message], options: ChatOptions) -> tuple[str, StandIns, PlacedMedia]:
        """The text of a conversation up to where the answer begins, what stands in for its users' marks, its media."""
        if self.system and not any(message.role in SYSTEM_ROLES for message in messages):
            messages = [Message(SYSTEM_ROLES[0], self.system), *messages]
        media = placed(messages, self.modalities)
        if not media:
            return (*self._rendered(messages, options), NO_MEDIA)
        if options.modules:
            raise BadSetting("a conversation can have images and sound or modules, not both: leave one of them out")
        with suppress(BadTemplate):
            text, stand_ins = self._rendered(bare(messages), options)
            if media.are_in(text):
                return text, stand_ins, media
        text, stand_ins = self._rendered(marked_as_text(messages), options)
        media = with_marks(media)
        if not media.are_in(text):
            nouns = "images" if all(each.kind == IMAGE_PART for each in media.media) else "sound"
            raise BadTemplate(f"the chat template leaves {nouns} out; give another one: --chat-template chatml")
        return text, stand_ins, media

    def _rendered(self, messages: Sequence[Message], options: ChatOptions) -> tuple[str, StandIns]:
        """What the template makes of a conversation, and what stands in for its users' marks."""
        messages = [with_objects(self._with_thoughts_apart(message)) for message in messages]
        tools, variables, stand_ins = options.tools, options.variables, NO_STAND_INS
        if not options.parse_special:
            schemas = () if tools is None else tools.tools
            hidden = self.tokenizer.marks.hide(messages, schemas, variables, self._answer_marks)
            messages, variables, stand_ins = hidden.messages, hidden.variables, hidden.stand_ins
            tools = None if tools is None else replace(tools, tools=tuple(hidden.tools))
        in_words = tools is not None and tools.in_words
        text = self.template.render(
            messages if tools is None else tools.messages(messages),
            add_generation_prompt=options.begins_answer,
            tools=None if tools is None or in_words else tools.tools,
            calls_in_words=in_words,
            **variables,
        )
        return text, stand_ins

    def _with_thoughts_apart(self, message: Message) -> Message:
        """An earlier answer without the marks of channels, which templates write themselves and refuse in contents."""
        form, content = self.thoughts, message.content
        if form is None or not form.anywhere or message.role != ASSISTANT or not isinstance(content, str):
            return message
        reader = AnswerReader(form)
        content = reader.push(content) + reader.finish()
        thoughts = {"reasoning_content": reader.thoughts} if reader.thoughts else {}
        return Message(message.role, content, {**thoughts, **message.extra})

    def _with_closed_thought(self, text: str, partial: str) -> tuple[str, str]:
        """A rendered conversation and the answer to continue, which must not land in an opened thought.

        It begins after the marks that the family puts before answers.
        """
        form = self.thoughts
        if form is None:
            return text, partial
        if not text.rstrip().endswith(form.begin.rstrip()):
            is_marked = any(mark in partial for mark in (form.begin, form.answer)) or text.endswith(form.answer)
            return (text, partial) if is_marked else (f"{text}{form.answer}", partial)
        if form.end in partial:  # the answer has the thought, and perhaps its beginning again
            return text, partial.lstrip().removeprefix(form.begin).lstrip("\n")
        closed = f"{form.end}{form.turn}{form.answer}" if form.dropped else f"\n\n{form.end}\n\n"
        return f"{text.rstrip()}{closed}", partial


def checked_variables(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises BadSetting for variables that the template gets in any case."""
    taken = next((name for name in variables if name in OWN_VARIABLES), None)
    if taken is not None:
        raise BadSetting(f"the chat template's {taken!r} is made of the conversation; leave it out")
    return variables
