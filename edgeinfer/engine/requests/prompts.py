"""How requests are made of a conversation or a text, by a model's tokenizer and chat template.

In: messages or a text, and options. Out: a `Request`. A last message of the assistant is continued. Knows no cache and
no devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from math import inf
from operator import index
from typing import Any, get_args

from edgeinfer.engine.requests.adapters import LoadedAdapters
from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts, ThoughtMarks
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.engine.requests.conversation import (
    FittedPrompt,
    Messages,
    checked,
    fit,
    kept_before_turn,
    split_partial,
    whole,
)
from edgeinfer.engine.requests.media_prompts import (
    Medium,
    Modalities,
    NamedTile,
    media_of,
    named,
    with_late_rows,
    with_rows,
)
from edgeinfer.engine.requests.module_prompts import (
    Module,
    Named,
    PlacedModules,
    PromptPiece,
    listed,
    marked,
    named_tokens,
)
from edgeinfer.engine.requests.prompt_rows import LateRows, MixedPrompt, Piece, PromptRows
from edgeinfer.engine.requests.python_tools import Tool
from edgeinfer.engine.requests.request import NO_SAMPLING, NO_VARIABLES, Options, Request, checked_options, request_of
from edgeinfer.engine.requests.told_chat import ChatOptions, ChatTeller, Known, checked_variables
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting, BadTemplate, UnknownKey
from edgeinfer.graph.step import IDS_ONLY, Inputs
from edgeinfer.models.images.image import Image
from edgeinfer.models.sounds.sound import Sound
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.thought_formats import ThoughtFormat
from edgeinfer.setting_values import Reuse
from edgeinfer.steps import Progress, no_progress

MOST_NAMED = 3
"""Special tokens in a message that are named to the user."""
_THOUGHT_TOKENS = 24
"""More tokens than the beginning of a thought has."""
_PLAIN_CHAT = ChatOptions(None, NO_VARIABLES)


_HERE = "\ue000"
"""Stands for the first question of a conversation."""


def no_modules(name: str) -> Module:
    """Raise UnknownKey: there are no modules."""
    raise UnknownKey(f"there is no module {name!r}: this model has no modules")


def nothing_known(head: Sequence[int]) -> Sequence[int]:
    """Return (): no text was read."""
    return ()


@dataclass(frozen=True)
class Prompts:
    """A model's tokenizer and template, for a context of `n_context` tokens.

    `inputs`: what it takes besides token ids. `sampling`: its author's values of sampling options. `adapters`: the LoRA
    adapters loaded with it. `stops`: texts at which answers of chats end, if a request names none.
    `system`: the system prompt of chats that have none. `marks_turns`: requests say where their turn begins. `reuse`:
    what requests that do not say may use of the cache; `kept_exact`: why it cannot be more than the same beginning.
    `module`: finds modules by name. `modalities`: what the model reads besides text; None: nothing.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int
    inputs: Inputs = IDS_ONLY
    sampling: Mapping[str, float] = field(default_factory=lambda: NO_SAMPLING)
    adapters: LoadedAdapters = field(default_factory=LoadedAdapters)
    stops: tuple[str, ...] = ()
    system: str = ""
    marks_turns: bool = False
    reuse: Reuse = "exact"
    kept_exact: str = ""
    module: Named = no_modules
    modalities: Modalities | None = None

    @cached_property
    def guidance(self) -> Guidance:
        """Builds constraints for this model."""
        return Guidance(self.tokenizer)

    def chat(self, messages: Messages, options: Options, known: Known = nothing_known) -> Request:
        """The request for a conversation, given whole; drops its oldest turns if it is too long and that is allowed.

        If the last message is the assistant's, the answer continues its text, which is built from `known` tokens as far
        as they agree with it. Raises ContextOverflow, BadTemplate, BadSetting, UnknownKey.
        """
        options = checked_options(options)
        if self.stops and not options.get("stop"):
            options = {**options, "stop": self.stops}
        conversation, told = self._marked(messages, options)
        tools = told.tools

        def tokens(shortened: Sequence[Message]) -> list[int]:
            return self._teller.tokens(told.modules.placed_first(shortened), known, told)

        if options.get("keeps_all"):
            fitted = whole(conversation, tokens, self.n_context)
        else:
            fitted = fit(conversation, tokens, self.n_context, options.get("max_tokens"))
        partial = split_partial(conversation)[1]
        modules = PlacedModules.of(fitted.prompt, tuple(told.modules.modules.values()))
        request = request_of(
            fitted.prompt,
            mixed=self._with_rows(fitted.prompt, conversation, options),
            options=self.with_tokens(options),
            notices=fitted.notices,
            continues_text=bool(partial),
            tools=tools,
            author=self.sampling,
            scales=self.adapters.scales_of(options.get("lora")),
            modules=modules,
            reuse=self._reuse(options),
        )
        opened = not partial and self._opens_thought(request.ids)
        constraint = self._after_thoughts(self._constraint(options, tools), tools, options, opened)
        remarks = _remarks(self._teller.new_marks(conversation), told.parse_special) + request.remarks
        turn_start = self._turn_start(fitted, conversation, told) if self.marks_turns else 0
        return replace(
            request,
            constraint=constraint,
            thoughts=self.thoughts,
            opens_thought=opened,
            remarks=remarks,
            turn_start=turn_start,
        )

    def _with_rows(
        self, prompt: Sequence[int], conversation: Sequence[Message], options: Options
    ) -> MixedPrompt | None:
        """A prompt with the rows of its images and sounds; None if it has none."""
        media, progress = media_of(conversation), options.get("progress", no_progress)
        pieces = with_rows(prompt, media, self.modalities, progress, sees_whole=self.inputs.spans)
        return None if pieces is None else MixedPrompt.of(pieces, self.inputs, self.n_context)

    def _turn_start(self, fitted: FittedPrompt, messages: Messages, told: ChatOptions) -> int:
        """Where the last message of the user begins, as far as what comes before it is told as in the prompt."""
        before = kept_before_turn([Message.of(message) for message in messages], fitted.n_dropped)
        try:
            head = self._teller.tokens(before, nothing_known, replace(told, begins_answer=False)) if before else ()
        except BadTemplate:  # of templates that refuse a system message alone
            head = ()
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(fitted.prompt, head, strict=False)))

    def _marked(self, messages: Messages, options: Options) -> tuple[Sequence[Message], ChatOptions]:
        """A conversation with marks in place of its modules, and how it is told. Raises BadSetting, UnknownKey."""
        told, modules = marked(checked(messages), options.get("modules", ()), self.module)
        return told, replace(self._told(options), modules=modules)

    def _told(self, options: Options) -> ChatOptions:
        """How options have a conversation told. Raises BadSetting."""
        several, choice = options.get("parallel_tools", True), options.get("tool_choice") or "auto"
        has_schema = options.get("schema") is not None
        tools = ToolUse.of(options.get("tools"), choice, several, self.template, has_schema=has_schema)
        variables = checked_variables(options.get("template_variables") or {})
        return ChatOptions(tools, variables, options.get("parse_special", False))

    def _after_thoughts(
        self, constraint: Constraint | None, tools: ToolUse | None, options: Options, opened: bool
    ) -> Constraint | None:
        """A constraint that holds after the thoughts, whose number of tokens may be limited. Raises BadSetting."""
        budget, has_schema = options.get("max_thought_tokens"), options.get("schema") is not None
        if budget is not None and budget < 0:
            raise BadSetting(f"max_thought_tokens cannot be {budget}: it must be 0 or more")
        form = self.thoughts
        is_free = tools is not None and not tools.required and not has_schema
        if form is not None and form.dropped and is_free:
            constraint = None  # grammars of calls know no further marks
        if form is None or (constraint is None and budget is None):
            return constraint
        lead = form.answer
        if tools is not None and not tools.in_words:
            lead = tools.form.lead if tools.required else self._common_lead(tools) if has_schema else ""
        marks = ThoughtMarks.of(form, self.tokenizer, lead)
        return AfterThoughts(constraint, marks, self.tokenizer, opened=opened, budget=budget)

    def _common_lead(self, tools: ToolUse) -> str:
        """The marks with which both texts and calls begin."""
        form = self.thoughts
        if form is None or tools.in_words:
            return ""
        pairs = zip(form.answer, tools.form.lead, strict=False)
        return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @cached_property
    def _teller(self) -> ChatTeller:
        return ChatTeller(self.tokenizer, self.template, self.system, self.modalities)

    @property
    def thoughts(self) -> ThoughtFormat | None:
        """How the model sets thoughts apart from answers; None if it has none that its template knows."""
        return self._teller.thoughts

    def _opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the beginning of a thought."""
        if self.thoughts is None:
            return False
        last = takewhile(lambda token: token >= 0, reversed(prompt[-_THOUGHT_TOKENS:]))  # rows have no text
        end = self.tokenizer.decode([*last][::-1])
        return end.rstrip().endswith(self.thoughts.begin.rstrip())

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        """The prompt of a conversation, and what was left out of it. Raises as `chat`."""
        found, told = self._marked(messages, {})
        return fit(
            found,
            lambda shortened: self._teller.tokens(shortened, nothing_known, told),
            self.n_context,
            max_tokens,
        )

    def text(self, text: str | Sequence[PromptPiece], options: Options) -> Request:
        """The request for a text to continue as it is, or for its tokens; rows, tiles or modules may be among them.

        Special tokens spelled in the text become those tokens, unless the option `parse_special` is False. Raises
        BadSetting, UnknownKey; UnsupportedModel and ContextOverflow for rows that the model cannot take.
        """
        options = checked_options(options)
        placed = [self.module(name) for name in listed(options.get("modules", ()))]
        first, mixed = [token for module in placed for token in module.names], None
        if isinstance(text, str):
            prompt = self.tokenizer.encode(text, parse_special=options.get("parse_special", True))
            if self.tokenizer.vocabulary.add_eos:  # a text to continue has no end yet
                prompt.pop()
        else:
            pieces = [piece for piece in text if not isinstance(piece, Module)]
            prompt, mixed = self.pieces(pieces, options.get("progress", no_progress))
            placed += [piece for piece in text if isinstance(piece, Module)]
            if mixed is not None and placed:
                raise BadSetting("a prompt can have rows of numbers (or images) or modules, not both")
            if len(pieces) < len(text):
                prompt = named_tokens(text)
        start = self._n_before_text(prompt)
        prompt[start:start] = first
        return request_of(
            tuple(prompt),
            self.with_tokens(options),
            continues_text=True,
            constraint=self._constraint(options),
            mixed=mixed,
            author=self.sampling,
            scales=self.adapters.scales_of(options.get("lora")),
            modules=PlacedModules.of(prompt, placed),
            reuse=self._reuse(options),
        )

    def pieces(self, pieces: Sequence[Piece | NamedTile], progress: Progress) -> tuple[list[int], MixedPrompt | None]:
        """The tokens of a prompt, where rows have names; and the prompt itself if it has rows. Raises as `text`."""
        found = with_late_rows(pieces, self.modalities, progress, sees_whole=self.inputs.spans)
        tokens = self.checked([piece for piece in found if not isinstance(piece, PromptRows | LateRows)])
        if len(tokens) == len(found):
            return tokens, None
        mixed = MixedPrompt.of(found, self.inputs, self.n_context)
        return list(mixed.tokens), mixed

    def _n_before_text(self, prompt: Sequence[int]) -> int:
        """How many tokens stand before every text."""
        vocabulary = self.tokenizer.vocabulary
        return int(vocabulary.add_bos and list(prompt[:1]) == [vocabulary.bos_id])

    @cached_property
    def beginning(self) -> tuple[int, ...]:
        """What conversations begin with, up to the first question; or, where that fails, texts."""
        try:
            text = self._teller.text([Message("user", _HERE)], _PLAIN_CHAT)
            found = self.tokenizer.encode_rendered(text.partition(_HERE)[0])
        except BadTemplate:
            found = self.tokenizer.encode("")[:1]
        return tuple(found or self.tokenizer.encode("\n", add_special=False))

    def with_tokens(self, options: Options) -> Options:
        """Options whose `logit_bias` names tokens by number: a text stands for each of its tokens.

        It also forbids the tokens that `ignore_eos` is about.
        """
        bias: Any = options.get("logit_bias", {})
        if not isinstance(bias, Mapping):
            return options
        told = {key: (key,) if not isinstance(key, str) else self._tokens_of(key) for key in bias}
        biases: dict[int | str, float] = {token: bias[key] for key, tokens in told.items() for token in tokens}
        if options.get("ignore_eos"):
            biases |= dict.fromkeys(sorted(self.tokenizer.vocabulary.end_of_generation), -inf)
        return {**options, "logit_bias": biases} if biases else options

    def _reuse(self, options: Options) -> Reuse:
        reuse = options.get("reuse", self.reuse)
        if reuse not in get_args(Reuse):
            raise BadSetting(f"reuse cannot be {reuse!r}: it must be {' or '.join(get_args(Reuse))}")
        if reuse == "shifted" and self.kept_exact:
            raise BadSetting(f"reuse cannot be shifted: {self.kept_exact}")
        return reuse

    def _tokens_of(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=True)

    def checked(self, tokens: Sequence[int]) -> list[int]:
        """The tokens as plain integers. Raises BadSetting if one is not in the vocabulary."""
        try:
            tokens = list(map(index, tokens))
        except TypeError:
            raise BadSetting("a prompt is a text, or a list of token ids, which PromptRows may be among") from None
        n_tokens = self.tokenizer.n_tokens
        strange = next((token for token in tokens if not 0 <= token < n_tokens), None)
        if strange is not None:
            raise BadSetting(f"there is no token {strange}; they go from 0 to {n_tokens - 1}")
        return tokens

    def _constraint(self, options: Options, tools: ToolUse | None = None) -> Constraint | None:
        """The constraint that the options ask for. Raises BadSetting if it cannot be followed."""
        grammar = grammar_of(options.get("schema"), options.get("grammar"), options.get("regex"))
        if tools is not None:
            if grammar is not None and grammar.kind != "json":
                raise BadSetting("an answer follows a grammar or calls tools, not both; a schema goes with tools")
            schema, common = None if grammar is None else grammar.text, len(self._common_lead(tools))
            answer = "" if self.thoughts is None or tools.in_words else self.thoughts.answer
            leads = answer[common:], "" if tools.in_words else tools.form.lead[common:]
            return tools.constraint(self.guidance, self.tokenizer, schema, leads)
        return None if grammar is None else self.guidance.constraint(grammar)

    def render(
        self,
        messages: Messages,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
        *,
        begins_answer: bool = True,
    ) -> str:
        """The text that the model would get for a conversation, with functions that it may call. Raises as `chat`.

        `begins_answer`: it ends with the beginning of an answer.
        """
        used = ToolUse.of(tools, "auto", True, self.template)
        found, modules = marked(checked(messages), (), self.module)
        told = ChatOptions(used, checked_variables(variables), begins_answer=begins_answer, modules=modules)
        return self._teller.text(found, told)

    def n_tokens(self, messages: Messages, options: Options | None = None) -> int:
        """The number of tokens of a conversation with these options, whether it fits or not.

        Raises BadTemplate, BadSetting.
        """
        found, told = self._marked(messages, {} if options is None else options)
        return len(self._teller.tokens(told.modules.placed_first(found), nothing_known, told))

    def n_image_tokens(self, image: Image) -> int:
        """The number of tokens that an image takes in a prompt, from its size alone: nothing is encoded.

        Raises BadImage, UnsupportedModel if the model reads no images.
        """
        return self._n_media_tokens(image)

    def n_sound_tokens(self, sound: Sound) -> int:
        """The same for a sound, from its length alone. Raises BadSound, UnsupportedModel."""
        return self._n_media_tokens(sound)

    def _n_media_tokens(self, medium: Medium) -> int:
        pieces = named(medium, self.modalities).pieces()
        return sum(len(self._tokens_of(each)) if isinstance(each, str) else each.plan.n_rows for each in pieces)


def _remarks(marks: Sequence[str], parse_special: bool) -> tuple[str, ...]:
    if not marks:
        return ()
    named = f"{', '.join(marks[:MOST_NAMED])}{', …' if len(marks) > MOST_NAMED else ''}"
    if parse_special:
        return (f"the message spells special tokens ({named}), which are read as such: parse_special is on",)
    return (f"the message spells special tokens ({named}), which are read as text; parse_special reads them as such",)
