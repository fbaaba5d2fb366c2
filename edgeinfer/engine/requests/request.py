"""A generation request: the prompt as tokens, how to choose tokens, and when to stop.

In: options as plain values; messages, through the model's template, or a text as it is. Out: one frozen `Request`,
which can check whether it is possible. A last message of the assistant is continued. Knows no cache and no devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from types import MappingProxyType
from typing import Any, Literal, TypedDict

from edgeinfer.engine.requests.constrained.after_thoughts import AfterThoughts, ThoughtMarks
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.engine.requests.conversation import (
    ASSISTANT,
    FittedPrompt,
    Messages,
    fit,
    partial_tokens,
    split_partial,
    whole,
)
from edgeinfer.engine.requests.prompt_rows import MixedPrompt, Piece, PromptRows
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.graph.step import IDS_ONLY, Inputs
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import ThoughtFormat, thoughts_of
from edgeinfer.models.text.tools import with_objects
from edgeinfer.steps import Progress, no_progress

REQUEST_KEYS = (
    *("max_tokens", "stop", "progress", "logprobs", "schema", "grammar", "regex", "keeps_all"),
    *("tools", "tool_choice", "parallel_tools", "template_variables", "max_thought_tokens"),
)

MOST_LOGPROBS = 20
"""Limit for the likely tokens whose log probabilities are returned with each chosen token."""
Known = Callable[[Sequence[int]], Sequence[int]]
"""Given the first tokens of a text, returns the tokens read or generated of it, including those; () if unknown."""
_THOUGHT_TOKENS = 24
"""More tokens than the beginning of a thought has."""
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})
OWN_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "name"})
"""Names that `ChatTemplate.render` sets itself, so they cannot be template variables."""


def thinking_variables(is_on: bool) -> dict[str, bool]:
    """Variables that tell a chat template whether the model is to think, by the names that the families use."""
    return {"enable_thinking": is_on, "thinking": is_on}


class Options(TypedDict, total=False):
    """Options of an answer: the fields of `SamplingSettings`, when to stop, and what the answer must match.

    logprobs: return the log probability of each token, and of this many likely alternatives. schema: a JSON schema (as
    a mapping or text; True: any JSON object). grammar: in the syntax of Lark or llama.cpp (GBNF). regex: matches the
    whole answer. keeps_all: refuse a conversation that does not fit in the context, instead of shortening it. tools:
    functions that may be called, in the format of OpenAI's API, also instead of following a schema; tool_choice:
    "auto", "none", "required", or the name of a function that must be called once; parallel_tools: whether several may
    be called at a time. template_variables: further variables of the chat template (enable_thinking, …).
    max_thought_tokens: most tokens of thoughts, after which the model is made to answer; without effect on models that
    have none.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: dict[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    progress: Progress
    logprobs: int | None
    schema: Mapping[str, object] | str | Literal[True] | None
    grammar: str | None
    regex: str | None
    keeps_all: bool
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    parallel_tools: bool
    template_variables: Mapping[str, Any]
    max_thought_tokens: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """What to continue, and how.

    `continues_text`: the answer continues the prompt's text, so a space at its start belongs to it. `notices`: what was
    left out of the prompt to make it fit, if anything. `logprobs`: return the log probability of each chosen token, and
    of this many likely ones; None: none. `constraint`: what the answer must match, built for this request alone.
    `tools`: the functions that may be called. `thoughts`: how the model sets thoughts apart, if it does;
    `opens_thought`: the prompt ends within one. `mixed`: the prompt if it has rows of numbers; `prompt` has the names
    of these rows.
    """

    prompt: tuple[int, ...]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    continues_text: bool = False
    notices: tuple[str, ...] = ()
    progress: Progress = no_progress
    logprobs: int | None = None
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    thoughts: ThoughtFormat | None = None
    opens_thought: bool = False
    mixed: MixedPrompt | None = None

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
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadSetting(f"max_tokens cannot be {self.max_tokens}: it must be 1 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise BadSetting(f"logprobs cannot be {self.logprobs}: it must be between 0 and {MOST_LOGPROBS}")
        if len(self.prompt) > n_context:
            raise ContextOverflow(
                f"the prompt has {len(self.prompt)} tokens and the context holds {n_context}; shorten it, "
                "or load the model with a larger context (--ctx, n_context)"
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
        constraint=constraint,
        tools=tools,
        mixed=mixed,
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

    `inputs`: what it takes besides token ids. `sampling`: its author's values of sampling options.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int
    inputs: Inputs = IDS_ONLY
    sampling: Mapping[str, float] = field(default_factory=lambda: NO_SAMPLING)

    @cached_property
    def guidance(self) -> Guidance:
        """Builds constraints for this model."""
        return Guidance(self.tokenizer)

    def chat(self, messages: Messages, options: Options, known: Known = nothing_known) -> Request:
        """The request for a conversation, given whole; drops its oldest turns if it is too long and that is allowed.

        If the last message is the assistant's, the answer continues its text, which is built from `known` tokens as far
        as they agree with it. Raises ContextOverflow, BadTemplate, BadSetting.
        """
        several, choice = options.get("parallel_tools", True), options.get("tool_choice", "auto")
        tools = ToolUse.of(options.get("tools"), choice, several, self.template)
        variables = _checked_variables(options.get("template_variables") or {})

        def tokens(shortened: Sequence[Message]) -> list[int]:
            return self._tokens(shortened, known, tools, variables)

        if options.get("keeps_all"):
            fitted = whole(messages, tokens, self.n_context)
        else:
            fitted = fit(messages, tokens, self.n_context, options.get("max_tokens"))
        partial = split_partial([Message.of(message) for message in messages])[1]
        request = request_of(
            fitted.prompt,
            options,
            notices=fitted.notices,
            continues_text=bool(partial),
            tools=tools,
            author=self.sampling,
        )
        opened = not partial and self._opens_thought(fitted.prompt)
        constraint = self._after_thoughts(self._constraint(options, tools), options.get("max_thought_tokens"), opened)
        return replace(request, constraint=constraint, thoughts=self.thoughts, opens_thought=opened)

    def _after_thoughts(self, constraint: Constraint | None, budget: int | None, opened: bool) -> Constraint | None:
        """A constraint that holds after the thoughts, of which there are `budget` tokens at most. Raises BadSetting."""
        if budget is not None and budget < 0:
            raise BadSetting(f"max_thought_tokens cannot be {budget}: it must be 0 or more")
        form = self.thoughts
        if form is None or form.dropped or (constraint is None and budget is None):
            return constraint
        end = tuple(self.tokenizer.encode(f"{form.end}\n\n", add_special=False, goes_on=True))
        marks = ThoughtMarks(self.tokenizer.token_id(form.begin), form.end, end)
        return AfterThoughts(constraint, marks, self.tokenizer, opened=opened, budget=budget)

    @cached_property
    def thoughts(self) -> ThoughtFormat | None:
        """How the model sets thoughts apart from answers; None if it has none that its template knows."""
        return next(filter(None, map(thoughts_of, self.template.sources.values())), None)

    def _opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the beginning of a thought."""
        if self.thoughts is None:
            return False
        end = self.tokenizer.decode(prompt[-_THOUGHT_TOKENS:])
        return end.rstrip().endswith(self.thoughts.begin.rstrip())

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        """The prompt of a conversation, and what was left out of it. Raises as `chat`."""
        return fit(messages, lambda shortened: self._tokens(shortened, nothing_known), self.n_context, max_tokens)

    def text(self, text: str | Sequence[Piece], options: Options, *, parse_special: bool = True) -> Request:
        """The request for a text to continue as it is, or for its tokens, possibly with rows of numbers among them.

        `parse_special`: names of special tokens in the text become those tokens. Raises BadSetting; UnsupportedModel
        and ContextOverflow for rows that the model cannot take.
        """
        mixed = None
        if isinstance(text, str):
            prompt = self.tokenizer.encode(text, parse_special=parse_special)
            if self.tokenizer.vocabulary.add_eos:  # a text to continue has no end yet
                prompt.pop()
        else:
            prompt = self.checked([piece for piece in text if not isinstance(piece, PromptRows)])
            if len(prompt) < len(text):
                mixed = MixedPrompt.of(text, self.inputs, self.n_context)
                prompt = list(mixed.tokens)
        constraint = self._constraint(options)
        return request_of(
            tuple(prompt), options, continues_text=True, constraint=constraint, mixed=mixed, author=self.sampling
        )

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
            return tools.constraint(self.guidance, self.tokenizer, None if grammar is None else grammar.text)
        return None if grammar is None else self.guidance.constraint(grammar)

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The text that the model would get for a conversation, with functions that it may call. Raises as `chat`."""
        before, partial = split_partial([Message.of(message) for message in messages])
        used = ToolUse.of(tools, "auto", True, self.template)
        text = self._text(before, used, _checked_variables(variables))
        return "".join(self._with_closed_thought(text, partial)) if partial else text

    def n_tokens(self, messages: Messages) -> int:
        """The number of tokens of a conversation, whether it fits or not. Raises BadTemplate, BadSetting."""
        return len(self._tokens([Message.of(message) for message in messages], nothing_known))

    def _text(self, messages: Sequence[Message], tools: ToolUse | None, variables: Mapping[str, Any]) -> str:
        """The text of a conversation as the model gets it, up to where the answer begins."""
        messages = list(map(self._with_thoughts_apart, messages))
        if tools is None:
            return self.template.render(list(map(with_objects, messages)), add_generation_prompt=True, **variables)
        schemas = None if tools.in_words else tools.tools
        return self.template.render(tools.messages(messages), add_generation_prompt=True, tools=schemas, **variables)

    def _with_thoughts_apart(self, message: Message) -> Message:
        """An earlier answer without the marks of channels, which templates write themselves and refuse in contents."""
        form, content = self.thoughts, message.content
        if form is None or not form.anywhere or message.role != ASSISTANT or not isinstance(content, str):
            return message
        reader = AnswerReader(form)
        content = reader.push(content) + reader.finish()
        thoughts = {"reasoning_content": reader.thoughts} if reader.thoughts else {}
        return Message(message.role, content, {**thoughts, **message.extra})

    def _tokens(
        self,
        messages: Sequence[Message],
        known: Known,
        tools: ToolUse | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        before, partial = split_partial(messages)
        text = self._text(before, tools, variables)
        if partial:
            text, partial = self._with_closed_thought(text, partial)
        head = self.tokenizer.encode_rendered(text)
        return head + partial_tokens(self.tokenizer, head, partial, known(head)) if partial else head

    def _with_closed_thought(self, text: str, partial: str) -> tuple[str, str]:
        """A rendered conversation and the answer to continue, so that an answer does not land in an opened thought."""
        form = self.thoughts
        if form is None or not text.rstrip().endswith(form.begin.rstrip()):
            return text, partial
        if form.end in partial:  # the answer has the thought, and perhaps its beginning again
            return text, partial.lstrip().removeprefix(form.begin).lstrip("\n")
        return f"{text.rstrip()}\n\n{form.end}\n\n", partial


def _checked_variables(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises BadSetting for variables that the template gets in any case."""
    taken = next((name for name in variables if name in OWN_VARIABLES), None)
    if taken is not None:
        raise BadSetting(f"the chat template's {taken!r} is made of the conversation; leave it out")
    return variables
