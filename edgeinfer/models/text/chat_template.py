"""Chat templates: messages to the text format a model was trained on, by the model's own template or a fallback.

In: the templates of a GGUF file, messages, tools. Out: text, including special tokens. A template is code from the
model's file: it runs in a sandbox within limits of time and size, and fails with BadTemplate. The text always includes
the content of the system message, whatever the template does with that role. Independent of token ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import BadTemplate, EdgeInferError
from edgeinfer.models.text.message import Message, plain
from edgeinfer.models.text.message_forms import first_form
from edgeinfer.models.text.template_choice import TemplateChoice, alike, built_in
from edgeinfer.models.text.template_meter import TemplateLimits, TemplateMeter
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary

if TYPE_CHECKING:
    from jinja2 import Template

    from edgeinfer.models.text.template_environment import TemplateEnvironment

_KEY = "tokenizer.chat_template"
_SYSTEM_ROLES = frozenset({"system", "developer"})
_DEFAULT, _TOOL_USE = "default", "tool_use"
USUAL_MARKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"chatml": frozenset({"<|im_start|>", "<|im_end|>"}), "gemma": frozenset({"<start_of_turn>", "<end_of_turn>"})}
)
"""Tokens of models that have a built-in template, if their files have none; Ollama's of Gemma 3 have none."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered chat. `system_merged`: the template left a system message out, so it begins a user message."""

    text: str
    system_merged: bool


class ChatTemplate:
    """The chat templates of one model; one instance can be used by several threads.

    `origin` says where they come from: "model", or the name or path of the template that is used instead; "chatml",
    "gemma" or "plain" for a model without one. `notices`: what to tell about a template that was chosen.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        origin: str = "model",
        notices: tuple[str, ...] = (),
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.origin = origin
        self.notices = notices
        self.sources = dict(sources)
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or TemplateLimits()
        self._now = now
        self._environment: TemplateEnvironment | None = None
        self._compiled: dict[str, Template] = {}

    @classmethod
    def from_metadata(
        cls,
        metadata: TokenizerMetadata,
        vocabulary: Vocabulary,
        chosen: TemplateChoice | None = None,
        beside: str = "",
    ) -> ChatTemplate:
        """The template that was chosen, else the templates of a GGUF file, else the fallback for its vocabulary.

        `beside`: a template in Go's language that is kept beside the file: the fallback is what writes alike.
        """
        if chosen is not None:
            notices = chosen.notices(vocabulary.tokens)
            return cls({_DEFAULT: chosen.source}, vocabulary.special_texts(), origin=chosen.origin, notices=notices)
        sources = {}
        names = metadata.strings("tokenizer.chat_templates") if "tokenizer.chat_templates" in metadata else []
        for name, key in [(_DEFAULT, _KEY), *((name, f"{_KEY}.{name}") for name in names)]:
            if key in metadata and metadata.text(key).strip():
                sources[name] = metadata.text(key)
        if sources:
            return cls(sources, vocabulary.special_texts())
        found = alike(beside)
        usual = found or fallback(vocabulary)
        notices = (_told_beside(usual.origin, is_alike=found is not None),) if beside else ()
        return cls({_DEFAULT: usual.source}, vocabulary.special_texts(), origin=usual.origin, notices=notices)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the available templates."""
        return tuple(self.sources)

    def check(self) -> None:
        """Raises BadTemplate for a template that cannot be compiled."""
        for name in self.sources:
            self._template(name)

    def prepare(self) -> None:
        """Compile the template used by most chats, ahead of its first use; errors are raised when it is used."""
        with suppress(BadTemplate):
            self._template(self._pick(None, has_tools=False))

    def render(
        self,
        messages: Sequence[Message | Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        name: str | None = None,
        calls_in_words: bool = False,
        **extra: object,
    ) -> str:
        """The text of a chat; see `rendering`, which also reports what happened to the system message."""
        return self.rendering(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            name=name,
            calls_in_words=calls_in_words,
            **extra,
        ).text

    def rendering(
        self,
        messages: Sequence[Message | Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        name: str | None = None,
        calls_in_words: bool = False,
        **extra: object,
    ) -> Rendering:
        """Render `messages`, with the beginning of an answer if `add_generation_prompt`.

        `tools` are JSON schemas, `name` selects one of several templates, `extra` are further variables
        (`enable_thinking=False`), which may also replace `bos_token` and similar ones. A template that fails on the
        messages, leaves out calls, or writes Python's notation, gets them in the other forms of `message_forms`; with
        `calls_in_words` calls and results are always in the texts. If it refuses system messages or leaves them out,
        the text of those after the first message, or of all, goes before the next user message. Raises BadTemplate for
        a template that fails or exceeds its limits, BadSetting for invalid messages.
        """
        options = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt, **extra}
        variables = {key: plain(value, key) for key, value in {**self._special_tokens, **options}.items()}
        picked = self._pick(name, has_tools=bool(tools))
        chat = _known_roles([Message.of(message) for message in messages], self.sources[picked])
        if not _system_messages(chat):
            return Rendering(self._run_form(picked, chat, variables, calls_in_words), system_merged=False)
        refusal, began_s = None, time.thread_time()
        n_leading = next((n for n, message in enumerate(chat) if message.role not in _SYSTEM_ROLES), len(chat))
        for n_kept in dict.fromkeys((len(chat), n_leading, 0)):
            told = [*chat[:n_kept], *_merge_system(chat[n_kept:])]
            if time.thread_time() - began_s > self._limits.seconds:
                break
            try:
                text = self._run_form(picked, told, variables, calls_in_words)
            except BadTemplate as error:
                refusal = refusal or error
                continue
            if _says_all(text, _system_messages(told)):
                return Rendering(text, system_merged=n_kept < len(chat))
        raise refusal or BadTemplate("the chat template leaves out what the system says")

    def _run_form(self, name: str, chat: Sequence[Message], variables: Mapping[str, object], in_words: bool) -> str:
        """The text of the first form of `chat` that the template takes. Raises BadTemplate if it takes none."""
        template, given_up_at = self._template(name), time.thread_time() + self._limits.seconds
        n_runs = 0

        def render(messages: Sequence[Message], scope: Mapping[str, object]) -> str:
            nonlocal n_runs
            n_runs += 1
            if n_runs > 1 and time.thread_time() > given_up_at:
                raise BadTemplate("the chat template takes no form of these messages within its time")
            return self._run(template, messages, scope)

        return first_form(chat, self.sources[name], variables, self._now(), render, in_words=in_words)

    def _pick(self, name: str | None, *, has_tools: bool) -> str:
        if name is None:
            name = _TOOL_USE if has_tools and _TOOL_USE in self.sources else _DEFAULT
            name = name if name in self.sources else next(iter(self.sources), name)
        if name not in self.sources:
            raise BadTemplate(
                f"no chat template is called {name!r}; the model has: {', '.join(self.sources) or 'none'}"
            )
        return name

    def _template(self, name: str) -> Template:
        compiled = self._compiled.get(name)
        if compiled is None:
            compiled = self._compiled[name] = self._compile(self.sources[name])
        return compiled

    def _compile(self, source: str) -> Template:
        from edgeinfer.models.text.template_environment import TemplateEnvironment

        if len(source) > self._limits.source_chars:
            raise BadTemplate(
                f"the chat template is {len(source)} characters long; edgeinfer reads {self._limits.source_chars}"
            )
        if self._environment is None:
            self._environment = TemplateEnvironment(self._now)
        try:
            return self._environment.compile_source(source)
        except EdgeInferError:
            raise
        except Exception as error:
            # Besides Jinja's own errors: recursion, memory and syntax errors of the code it generates.
            raise BadTemplate(f"the chat template cannot be read: {_describe(error)}") from error

    def _run(self, template: Template, chat: Sequence[Message], variables: Mapping[str, Any]) -> str:
        assert self._environment is not None
        messages = [plain(message.as_mapping(), f"messages[{index}]") for index, message in enumerate(chat)]
        scope = {**variables, "messages": messages}
        meter = TemplateMeter(self._limits, sum(map(_weight, scope.values())))
        pieces: list[str] = []
        written = 0
        try:
            for piece in self._environment.render_pieces(template, scope, meter):
                pieces.append(piece)
                written += len(piece)
                meter.allow(written)
        except EdgeInferError:
            raise
        except Exception as error:
            raise BadTemplate(f"the chat template fails on these messages: {_describe(error)}") from error
        return "".join(pieces)


def _system_messages(chat: Iterable[Message]) -> list[Message]:
    return [message for message in chat if message.role in _SYSTEM_ROLES and message.text.strip()]


def _says_all(text: str, messages: Iterable[Message]) -> bool:
    """Whether `text` contains each message's content; templates may trim it."""
    return all(message.text.strip() in text for message in messages)


def _known_roles(chat: Sequence[Message], source: str) -> list[Message]:
    """`chat`, with developers' messages as system messages if the template's source does not name developers."""
    if "developer" in source:
        return list(chat)
    return [
        Message("system", message.content, message.extra) if message.role == "developer" else message
        for message in chat
    ]


def _merge_system(chat: Sequence[Message]) -> list[Message]:
    """`chat` without system messages: their content goes before the next user message, or becomes one in its place."""
    merged: list[Message] = []
    waiting: list[str] = []
    place = 0
    for message in chat:
        if message.role in _SYSTEM_ROLES:
            place = place if waiting else len(merged)
            waiting += [message.text.strip()] if message.text.strip() else []
        elif message.role == "user" and waiting:
            merged.append(message.with_text_before("\n\n".join(waiting)))
            waiting = []
        else:
            merged.append(message)
    if waiting:
        merged.insert(place, Message("user", "\n\n".join(waiting)))
    return merged


def _weight(value: object) -> int:
    """The number of characters and nodes in plain data."""
    if isinstance(value, str):
        return 8 + len(value)
    if isinstance(value, dict):
        return 8 + sum(_weight(key) + _weight(item) for key, item in value.items())
    return 8 + sum(map(_weight, value)) if isinstance(value, list) else 8


def _describe(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if isinstance(line, int) else ""
    return f"{type(error).__name__}: {str(error)[:300] or 'no details'}{where}"


def _told_beside(name: str, *, is_alike: bool) -> str:
    """What to tell about a file without a template, beside which there is one in Go's language."""
    why = "as Ollama's template does" if is_alike else "for Ollama's template is in a language that is not read"
    return f"the file has no chat template: {name} writes the chats, {why} (--chat-template chooses another)"


def fallback(vocabulary: Vocabulary) -> TemplateChoice:
    """The built-in template, "chatml", "gemma" or "plain", for a model without one."""
    special = {vocabulary.tokens[token] for token in vocabulary.special_ids()}
    for name, marks in USUAL_MARKS.items():
        if marks <= special:
            return built_in(name)
    return built_in("plain")
