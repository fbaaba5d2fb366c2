"""A generation request: the prompt as tokens, how to choose tokens, and when to stop.

In: options as plain values; messages, through the model's template, or a text as it is. Out: one frozen `Request`,
which can check whether it is possible. A last message of the assistant is continued. Knows no cache and no devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from operator import index
from types import MappingProxyType
from typing import Any, Literal, TypedDict

from edgeinfer.engine.requests.adapters import AdapterScales, LoadedAdapters, Scales
from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts, ThoughtMarks
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.engine.requests.conversation import FittedPrompt, Messages, fit, split_partial, whole
from edgeinfer.engine.requests.prompt_rows import MixedPrompt, Piece, PromptRows
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.requests.told_chat import ChatOptions, ChatTeller, Known
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.graph.step import IDS_ONLY, Inputs
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import ThoughtFormat
from edgeinfer.steps import Progress, no_progress

REQUEST_KEYS = (
    *("max_tokens", "stop", "progress", "logprobs", "after_sampling", "schema", "grammar", "regex", "keeps_all"),
    *("tools", "tool_choice", "parallel_tools", "template_variables", "max_thought_tokens", "lora", "parse_special"),
)

MOST_LOGPROBS = 20
"""Limit for the likely tokens whose log probabilities are returned with each chosen token."""
MOST_NAMED = 3
"""Special tokens in a message that are named to the user."""
_THOUGHT_TOKENS = 24
"""More tokens than the beginning of a thought has."""
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})
_PLAIN_CHAT = ChatOptions(None, NO_VARIABLES)
OWN_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "name"})
"""Names that `ChatTemplate.render` sets itself, so they cannot be template variables."""


def thinking_variables(is_on: bool) -> dict[str, bool]:
    """Variables that tell a chat template whether the model is to think, by the names that the families use."""
    return {"enable_thinking": is_on, "thinking": is_on}


class Options(TypedDict, total=False):
    """Options of an answer: the fields of `SamplingSettings`, when to stop, and what the answer must match.

    logprobs: return the log probability of each token, and of this many likely alternatives; after_sampling: those with
    which tokens are drawn, not the model's own. schema: a JSON schema (as
    a mapping or text; True: any JSON object). grammar: in the syntax of Lark or llama.cpp (GBNF). regex: matches the
    whole answer. keeps_all: refuse a conversation that does not fit in the context, instead of shortening it. tools:
    functions that may be called, in the format of OpenAI's API, also instead of following a schema; tool_choice:
    "auto", "none", "required", or the name of a function that must be called once; parallel_tools: whether several may
    be called at a time. template_variables: further variables of the chat template (enable_thinking, …).
    max_thought_tokens: most tokens of thoughts, after which the model is made to answer; without effect on models that
    have none. lora: scales of LoRA adapters by number or name, 0 for those not named; None: those of the model.
    parse_special: special tokens that are spelled in a text become those tokens; by default they do in a text to
    continue, and not in the messages of a conversation, where they could end a turn or begin another. logit_bias: by
    token; a text stands for each of its tokens.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: Mapping[int | str, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    progress: Progress
    logprobs: int | None
    after_sampling: bool
    schema: Mapping[str, object] | str | Literal[True] | None
    grammar: str | None
    regex: str | None
    keeps_all: bool
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    parallel_tools: bool
    template_variables: Mapping[str, Any]
    max_thought_tokens: int | None
    parse_special: bool
    lora: AdapterScales | None


@dataclass(frozen=True, slots=True)
class Request:
    """What to continue, and how.

    `continues_text`: the answer continues the prompt's text, so a space at its start belongs to it. `notices`: what was
    left out of the prompt to make it fit, if anything. `remarks`: what else there is to tell of it. `logprobs`: return
    the log probability of each chosen token, and of this many likely ones; None: none. `after_sampling`: those with
    which tokens are drawn. `constraint`: what the answer
    must match, built for this request alone. `tools`: the functions that may be called. `thoughts`: how the model sets
    thoughts apart, if it does; `opens_thought`: the prompt ends within one. `mixed`: the prompt if it has rows of
    numbers; `prompt` has the names of these rows. `scales`: of the model's LoRA adapters; () if passes state none.
    """

    prompt: tuple[int, ...]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    continues_text: bool = False
    notices: tuple[str, ...] = ()
    progress: Progress = no_progress
    logprobs: int | None = None
    after_sampling: bool = False
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    thoughts: ThoughtFormat | None = None
    opens_thought: bool = False
    remarks: tuple[str, ...] = ()
    mixed: MixedPrompt | None = None
    scales: Scales = ()

    def reader(self) -> AnswerReader | None:
        """A new reader of the answer; None if it has neither thoughts nor calls."""
        if self.tools is None and self.thoughts is None:
            return None
        tools = None if self.tools is None else self.tools.reader()
        return AnswerReader(self.thoughts, tools, opened=self.opens_thought)

    def check(self, n_context: int) -> None:
        """Raises BadSetting for an impossible request, ContextOverflow for a prompt that cannot fit."""
        if not self.prompt:
            raise BadSetting("the prompt has no tokens; give some text to continue")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise BadSetting(f"max_tokens cannot be {self.max_tokens}: it must be 0 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise BadSetting(f"logprobs cannot be {self.logprobs}: it must be between 0 and {MOST_LOGPROBS}")
        if len(self.prompt) > n_context:
            raise ContextOverflow(
                f"the prompt has {len(self.prompt)} tokens and the context holds {n_context}; shorten it, "
                "or load the model with a larger context (--ctx, n_context)",
                len(self.prompt),
                n_context,
            )


def request_of(
    prompt: tuple[int, ...],
    options: Options,
    *,
    continues_text: bool = False,
    notices: tuple[str, ...] = (),
    constraint: Constraint | None = None,
    tools: ToolUse | None = None,
    mixed: MixedPrompt | None = None,
    author: Mapping[str, float] = NO_SAMPLING,
    scales: Scales = (),
) -> Request:
    """Build a request from a prompt and options. Raises BadSetting for unknown or invalid options.

    `author`: values of sampling options that are not given.
    """
    stop: object = options.get("stop", ())
    if not isinstance(stop, str | Sequence):
        raise BadSetting(f"stop cannot be {stop!r}: it must be a text, or several")
    for name in options:
        if name not in Options.__annotations__:
            raise BadSetting(f"there is no option {name!r}; there are: {', '.join(Options.__annotations__)}")
    return Request(
        prompt=prompt,
        sampling=_sampling(options, author),
        max_tokens=options.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        continues_text=continues_text,
        notices=notices,
        progress=options.get("progress", no_progress),
        logprobs=options.get("logprobs"),
        after_sampling=options.get("after_sampling", False),
        constraint=constraint,
        tools=tools,
        mixed=mixed,
        scales=scales,
    )


def _sampling(options: Options, author: Mapping[str, float]) -> SamplingSettings:
    """The author's values with those of the options over them. Raises BadSetting."""
    given = {name: value for name, value in options.items() if name not in REQUEST_KEYS}
    if options.get("temperature") == 0:  # greedy answers are the model's own most likely tokens
        author = {name: value for name, value in author.items() if name != "repeat_penalty"}
    return SamplingSettings(**{**author, **given})  # type: ignore[arg-type]


def nothing_known(head: Sequence[int]) -> Sequence[int]:
    """Return (): no text was read."""
    return ()


@dataclass(frozen=True)
class Prompts:
    """A model's tokenizer and template, for a context of `n_context` tokens.

    `inputs`: what it takes besides token ids. `sampling`: its author's values of sampling options. `adapters`: the LoRA
    adapters loaded with it. `stops`: texts at which answers of chats end, if a request names none.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int
    inputs: Inputs = IDS_ONLY
    sampling: Mapping[str, float] = field(default_factory=lambda: NO_SAMPLING)
    adapters: LoadedAdapters = field(default_factory=LoadedAdapters)
    stops: tuple[str, ...] = ()

    @cached_property
    def guidance(self) -> Guidance:
        """Builds constraints for this model."""
        return Guidance(self.tokenizer)

    def chat(self, messages: Messages, options: Options, known: Known = nothing_known) -> Request:
        """The request for a conversation, given whole; drops its oldest turns if it is too long and that is allowed.

        If the last message is the assistant's, the answer continues its text, which is built from `known` tokens as far
        as they agree with it. Raises ContextOverflow, BadTemplate, BadSetting.
        """
        if self.stops and not options.get("stop"):
            options = {**options, "stop": self.stops}
        told = self._told(options)
        tools = told.tools

        def tokens(shortened: Sequence[Message]) -> list[int]:
            return self._teller.tokens(shortened, known, told)

        if options.get("keeps_all"):
            fitted = whole(messages, tokens, self.n_context)
        else:
            fitted = fit(messages, tokens, self.n_context, options.get("max_tokens"))
        partial = split_partial([Message.of(message) for message in messages])[1]
        request = request_of(
            fitted.prompt,
            self.with_tokens(options),
            notices=fitted.notices,
            continues_text=bool(partial),
            tools=tools,
            author=self.sampling,
            scales=self.adapters.scales_of(options.get("lora")),
        )
        opened = not partial and self._opens_thought(fitted.prompt)
        constraint = self._after_thoughts(self._constraint(options, tools), tools, options, opened)
        remarks = _remarks(self._teller.new_marks(messages), told.parse_special)
        return replace(request, constraint=constraint, thoughts=self.thoughts, opens_thought=opened, remarks=remarks)

    def _told(self, options: Options) -> ChatOptions:
        """How options have a conversation told. Raises BadSetting."""
        several, choice = options.get("parallel_tools", True), options.get("tool_choice", "auto")
        tools = ToolUse.of(options.get("tools"), choice, several, self.template)
        variables = _checked_variables(options.get("template_variables") or {})
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
        return ChatTeller(self.tokenizer, self.template)

    @property
    def thoughts(self) -> ThoughtFormat | None:
        """How the model sets thoughts apart from answers; None if it has none that its template knows."""
        return self._teller.thoughts

    def _opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the beginning of a thought."""
        if self.thoughts is None:
            return False
        end = self.tokenizer.decode(prompt[-_THOUGHT_TOKENS:])
        return end.rstrip().endswith(self.thoughts.begin.rstrip())

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        """The prompt of a conversation, and what was left out of it. Raises as `chat`."""
        return fit(
            messages,
            lambda shortened: self._teller.tokens(shortened, nothing_known, _PLAIN_CHAT),
            self.n_context,
            max_tokens,
        )

    def text(self, text: str | Sequence[Piece], options: Options) -> Request:
        """The request for a text to continue as it is, or for its tokens, possibly with rows of numbers among them.

        Special tokens spelled in the text become those tokens, unless the option `parse_special` is False. Raises
        BadSetting; UnsupportedModel and ContextOverflow for rows that the model cannot take.
        """
        mixed = None
        if isinstance(text, str):
            prompt = self.tokenizer.encode(text, parse_special=options.get("parse_special", True))
            if self.tokenizer.vocabulary.add_eos:  # a text to continue has no end yet
                prompt.pop()
        else:
            prompt = self.checked([piece for piece in text if not isinstance(piece, PromptRows)])
            if len(prompt) < len(text):
                mixed = MixedPrompt.of(text, self.inputs, self.n_context)
                prompt = list(mixed.tokens)
        return request_of(
            tuple(prompt),
            self.with_tokens(options),
            continues_text=True,
            constraint=self._constraint(options),
            mixed=mixed,
            author=self.sampling,
            scales=self.adapters.scales_of(options.get("lora")),
        )

    def with_tokens(self, options: Options) -> Options:
        """Options whose `logit_bias` names tokens by number: a text stands for each of its tokens."""
        bias: Any = options.get("logit_bias")
        if not isinstance(bias, Mapping) or not any(isinstance(key, str) for key in bias):
            return options
        told = {key: (key,) if not isinstance(key, str) else self._tokens_of(key) for key in bias}
        return {**options, "logit_bias": {token: bias[key] for key, tokens in told.items() for token in tokens}}

    def _tokens_of(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=True)

    def checked(self, tokens: Sequence[int]) -> list[int]:
        """The tokens as plain integers. Raises BadSetting if one is not in the vocabulary."""
        try:
            tokens = list(map(index, tokens))
        except TypeError:
            raise BadSetting("a prompt is a text, or a list of token ids, which PromptRows may be among") from None
        strange = next((token for token in tokens if not 0 <= token < self.tokenizer.n_tokens), None)
        if strange is not None:
            raise BadSetting(f"there is no token {strange}; they go from 0 to {self.tokenizer.n_tokens - 1}")
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
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
        *,
        begins_answer: bool = True,
    ) -> str:
        """The text that the model would get for a conversation, with functions that it may call. Raises as `chat`.

        `begins_answer`: it ends with the beginning of an answer.
        """
        used = ToolUse.of(tools, "auto", True, self.template)
        told = ChatOptions(used, _checked_variables(variables), begins_answer=begins_answer)
        return self._teller.text(messages, told)

    def n_tokens(self, messages: Messages, options: Options | None = None) -> int:
        """The number of tokens of a conversation with these options, whether it fits or not.

        Raises BadTemplate, BadSetting.
        """
        told = _PLAIN_CHAT if options is None else self._told(options)
        return len(self._teller.tokens([Message.of(message) for message in messages], nothing_known, told))


def _remarks(marks: Sequence[str], parse_special: bool) -> tuple[str, ...]:
    if not marks:
        return ()
    named = f"{', '.join(marks[:MOST_NAMED])}{', …' if len(marks) > MOST_NAMED else ''}"
    if parse_special:
        return (f"the message spells special tokens ({named}), which are read as such: parse_special is on",)
    return (f"the message spells special tokens ({named}), which are read as text; parse_special reads them as such",)


def _checked_variables(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises BadSetting for variables that the template gets in any case."""
    taken = next((name for name in variables if name in OWN_VARIABLES), None)
    if taken is not None:
        raise BadSetting(f"the chat template's {taken!r} is made of the conversation; leave it out")
    return variables
