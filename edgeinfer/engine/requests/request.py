"""A generation request: the prompt as tokens, how to choose tokens, and when to stop.

In: tokens, and options as plain values. Out: one frozen `Request`, which can check whether it is possible. Knows no
cache and no devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict, cast

from edgeinfer.engine.requests.adapters import AdapterScales, Scales
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.schema_sources import Schema
from edgeinfer.engine.requests.module_prompts import PlacedModules
from edgeinfer.engine.requests.prompt_rows import MixedPrompt
from edgeinfer.engine.requests.python_tools import Tool
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.requests.tool_use import ToolUse
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.foreign_names import OF_ANSWERS, hint
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import ThoughtFormat
from edgeinfer.setting_values import Reuse
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs

REQUEST_KEYS = (
    *("max_tokens", "stop", "progress", "logprobs", "after_sampling", "schema", "grammar", "regex", "keeps_all"),
    *("tools", "tool_choice", "parallel_tools", "template_variables", "max_thought_tokens", "lora", "parse_special"),
    *("ignore_eos", "scored_from", "reuse", "modules"),
)

MOST_LOGPROBS = 20
"""Limit for the likely tokens whose log probabilities are returned with each chosen token."""
WHOLE_NUMBERS = frozenset({"max_tokens", "max_thought_tokens", "logprobs", "scored_from"})
"""Options that count tokens."""
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
NO_SAMPLING: Mapping[str, float] = MappingProxyType({})


def thinking_variables(is_on: bool | None, effort: str | None = None) -> dict[str, Any]:
    """Variables that tell a chat template whether, and how much, the model is to think, by the families' names.

    `is_on`: None leaves it to the template. `effort`: a word that the template knows (low, medium, high); "none" turns
    thinking off.
    """
    if effort == "none":
        is_on, effort = bool(is_on), None
    variables = {} if effort is None else {"reasoning_effort": effort}
    return variables if is_on is None else {**variables, "enable_thinking": is_on, "thinking": is_on}


class Options(TypedDict, total=False):
    """Options of an answer: the fields of `SamplingSettings`, when to stop, and what the answer must match.

    None is the same as no option. max_tokens: by default an answer may fill the context. stop: texts that end an answer
    and are no part of it.

    logprobs: return the log probability of each token, and of this many likely alternatives; after_sampling: those with
    which tokens are drawn, not the model's own. schema: a JSON schema (as a mapping, text or pydantic model; True: any
    JSON object). grammar: in the syntax of Lark or llama.cpp (GBNF). regex: matches the whole answer. keeps_all: refuse
    a conversation that does not fit in the context, instead of shortening it. tools: functions that may be called, also
    instead of following a schema: Python functions with annotated arguments, which are described to the model and not
    called, or the format of OpenAI's API; tool_choice: "auto", "none", "required", or the name of a function that must
    be called once; parallel_tools: whether several may be called at a time. template_variables: further variables of
    the chat template (enable_thinking, …). max_thought_tokens: most tokens of thoughts, after which the model is made
    to answer; without effect on models that have none. lora: scales of LoRA adapters by number or name, 0 for those not
    named; None: those of the model. parse_special: special tokens that are spelled in a text become those tokens; by
    default they do in a text to continue, and not in the messages of a conversation, where they could end a turn or
    begin another. logit_bias: by token; a text stands for each of its tokens. ignore_eos: the tokens with which an
    answer ends are forbidden, so that it goes on to a limit or a stop text. scored_from: return log probabilities of
    the prompt's tokens too, from this one on (1: of all but the first, which nothing precedes). reuse: "shifted" takes
    text that was read at another position from there, after which the answer is not exact; "exact" does not. By default
    as the model was loaded. modules: names of modules (`LLM.modules`) to stand before the first question, or at the
    beginning of a text; the answer is not exact then.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_window: int | None
    logit_bias: Mapping[int | str, float] | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    progress: Progress
    logprobs: int | None
    after_sampling: bool
    schema: Schema
    grammar: str | None
    regex: str | None
    keeps_all: bool
    tools: Sequence[Tool] | None
    tool_choice: str | None
    parallel_tools: bool
    template_variables: Mapping[str, Any]
    max_thought_tokens: int | None
    parse_special: bool
    lora: AdapterScales | None
    ignore_eos: bool
    scored_from: int | None
    reuse: Reuse
    modules: Sequence[str]


@dataclass(frozen=True, slots=True)
class Request:
    """What to continue, and how.

    `continues_text`: the answer continues the prompt's text, so a space at its start belongs to it. `notices`: what was
    left out of the prompt to make it fit, if anything. `remarks`: what else there is to tell of it. `logprobs`: return
    the log probability of each chosen token, and of this many likely ones; None: none. `after_sampling`: those with
    which tokens are drawn. `constraint`: what the answer must match, built for this request alone. `tools`: the
    functions that may be called. `thoughts`: how the model sets thoughts apart, if it does; `opens_thought`: the prompt
    ends within one. `mixed`: the prompt if it has rows of numbers; `prompt` has the names of these rows. `scales`: of
    the model's LoRA adapters; () if passes state none. `scored_from`: the first token of the prompt whose log
    probability is wanted, and with it those of all that follow; None: of none. `turn_start`: where the turn of a chat
    begins that is answered; 0 if that is unknown. `reuse`: what of the cache it may use. `modules`: those in the
    prompt, if any; `prompt` has the names of their tokens. `written`: how many of the prompt's last tokens are the
    beginning of the answer, as where it was forked from another one; all that is told of the answer has them, and
    `max_tokens` counts them. `told`: their log probabilities, if wanted. `entropies`: return the entropy of the model's
    distribution at each token that is chosen.
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
    scored_from: int | None = None
    turn_start: int = 0
    modules: PlacedModules | None = None
    reuse: Reuse = "exact"
    written: int = 0
    told: tuple[TokenLogprobs, ...] = ()
    entropies: bool = False

    @property
    def n_before(self) -> int:
        """Tokens before the answer."""
        return len(self.prompt) - self.written

    @property
    def beginning(self) -> tuple[int, ...]:
        """Tokens of the answer that were written before."""
        return self.prompt[self.n_before :]

    @property
    def shareable(self) -> tuple[int, ...]:
        """The part of the prompt that others may have read; its last token is read in any case."""
        return self.prompt if self.scored_from is None else self.prompt[: self.scored_from]

    @property
    def is_plain(self) -> bool:
        """Whether it is for an answer alone, and not for log probabilities of the prompt."""
        return self.scored_from is None and self.max_tokens != 0

    @property
    def n_rows(self) -> int:
        """Tokens of the prompt that are rows."""
        return 0 if self.mixed is None else self.n_before - len(self.mixed.ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens before the answer, with the ids of what they have in modules; rows stay as they are named."""
        return self.prompt[: self.n_before] if self.modules is None else self.modules.ids

    def least_together(self, n_cached: int) -> int:
        """How many tokens the next pass must have if it has any: rows that see each other are not read in parts."""
        return 1 if self.mixed is None else self.mixed.least_together(n_cached)

    def n_together(self, n_cached: int, n_tokens: int) -> int:
        """How many of the next `n_tokens` tokens a pass should read for that; more where such rows begin."""
        return n_tokens if self.mixed is None else self.mixed.n_together(n_cached, n_tokens)

    @property
    def own_ids(self) -> list[int] | None:
        """The ids of the prompt, in a new list, if not all of its tokens are ids; rows have none."""
        if self.mixed is not None:
            return [*self.mixed.ids, *self.beginning]
        return None if self.modules is None else [*self.modules.ids, *self.beginning]

    def remarks_on(self, n_shifted: int) -> tuple[str, ...]:
        """What there is to tell of an answer for which so many tokens of the prompt were taken from elsewhere."""
        if not n_shifted:
            return self.remarks
        told = f"the answer is approximate: {n_shifted} tokens of the prompt were read elsewhere, after another text"
        return (*self.remarks, told)

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
            raise BadSetting(f"max_tokens cannot be {self.max_tokens}: it must be 0 or more; None is no limit")
        if self.written and self.max_tokens is not None and self.written >= self.max_tokens:
            raise BadSetting(f"{self.written} tokens of the answer are written and max_tokens is {self.max_tokens}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise BadSetting(f"logprobs cannot be {self.logprobs}: it must be between 0 and {MOST_LOGPROBS}")
        if self.scored_from is not None and (self.mixed is not None or self.scored_from < 1):
            raise BadSetting(
                f"scored_from cannot be {self.scored_from}: log probabilities are those of token ids after the first, "
                "so it must be 1 or more, and the prompt must have no rows of numbers"
            )
        if self.scored_from is not None and self.modules is not None and self.scored_from <= self.modules.stop:
            raise BadSetting(
                f"scored_from cannot be {self.scored_from}: modules are not read with the prompt, so only tokens after "
                f"the first that follows them can be scored: from {self.modules.stop + 1} on"
            )
        if len(self.prompt) > n_context:
            raise ContextOverflow(
                f"the prompt has {len(self.prompt)} tokens and the context holds {n_context}; shorten it, "
                "or load the model with a larger context (--ctx, n_context)",
                len(self.prompt),
                n_context,
            )


def checked_options(options: Options) -> Options:
    """Options without those that are None. Raises BadSetting for an unknown one, and for what is no number or text."""
    known = Options.__annotations__
    for name in options:
        if name not in known:
            raise BadSetting(f"there is no option {name!r}; {_unknown(name, known)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in WHOLE_NUMBERS & given.keys():
        if not isinstance(given[name], Integral):
            raise BadSetting(f"{name} cannot be {given[name]!r}: it must be a whole number")
    stop = given.get("stop", "")
    if not isinstance(stop, str) and not (isinstance(stop, Sequence) and all(isinstance(each, str) for each in stop)):
        raise BadSetting(f"stop cannot be {stop!r}: it must be a text, or several")
    return cast("Options", given)


def _unknown(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown option."""
    if name in LoadOptions.__dataclass_fields__:
        return f"a model is loaded with it: edgeinfer.load(name, {name}=…)"
    return hint(name, known, OF_ANSWERS) or f"there are: {', '.join(known)}"


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
    modules: PlacedModules | None = None,
    reuse: Reuse = "exact",
) -> Request:
    """Build a request from a prompt and options. Raises BadSetting for unknown or invalid options.

    `author`: values of sampling options that are not given.
    """
    options = checked_options(options)
    stop: str | Sequence[str] = options.get("stop") or ()
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
        scored_from=options.get("scored_from"),
        remarks=() if modules is None else (modules.remark,),
        modules=modules,
        reuse="exact" if modules is not None or options.get("scored_from") is not None else reuse,
    )


def _sampling(options: Options, author: Mapping[str, float]) -> SamplingSettings:
    """The author's values with those of the options over them. Raises BadSetting."""
    given = {name: value for name, value in options.items() if name not in REQUEST_KEYS}
    if options.get("temperature") == 0:  # greedy answers are the model's own most likely tokens
        author = {name: value for name, value in author.items() if name != "repeat_penalty"}
    return SamplingSettings(**{**author, **given})  # type: ignore[arg-type]
