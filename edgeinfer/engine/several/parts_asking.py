"""Asking a model for parts side by side: the methods of `LLM` for many items, and for an answer by its outline.

In: an instruction and items, or a question; options as for one answer. Out: a `Mapped`, an `Outlined`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.requests.told_chat import Known
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.mapping import Mapped
from edgeinfer.engine.several.outlined import Outlined, OutlineSteps
from edgeinfer.engine.several.outlines import Outline, outline_regex, outline_turns, point_stops, point_turns
from edgeinfer.engine.several.suiting import Suiting, suiting_of
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message, Tokenizer
from edgeinfer.scheduling.allotment import Priority

SIDE_BY_SIDE = 16
"""Default number of items whose answers are written at the same time."""
OUTLINE_TOKENS = 200
"""Most tokens of an outline."""
FORMS = ("schema", "grammar", "regex", "tools")
"""Options with which an answer cannot be written in parts."""
OF_PARTS = ("stop", "logit_bias", "ignore_eos", "logprobs", "scored_from")
"""Options that say nothing to an outline."""


class PartsAsker:
    """The methods of `LLM` that have parts written side by side."""

    _pool: Pool
    _driver: StepDriver
    _tokenizer: Tokenizer
    prompts: Prompts
    _known: Known
    _opened_drafts: Callable[[], ClosingSpeculator | None]

    def map(
        self,
        instruction: str,
        items: Sequence[str],
        *,
        system: str | None = None,
        parallel: int = SIDE_BY_SIDE,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> Mapped:
        """Follow an instruction for each of many texts, up to `parallel` of them at a time in one pass.

            llm.map("Translate to French:", ["a plum", "a pear"], max_tokens=10).read()

        Each answer is the one that `chat` gives to a message of the instruction, an empty line and the item: the items
        do not see one another. Items begin in order; what the prompts have in common is read once. An item without text
        is not asked, and one that fails has its error in its place. Raises BadSetting, and ContextOverflow if the
        instruction alone is too long.
        """
        self._pool.check_open()
        items = checked_items(items)
        if not instruction.strip():
            raise BadSetting("the instruction is empty; say what to do with each item")
        if parallel < 1:
            raise BadSetting(f"parallel cannot be {parallel}: it must be 1 or more")
        head: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

        def conversation(item: str) -> Messages:
            return [*head, {"role": "user", "content": item_prompt(instruction, item)}]

        def begun(number: int) -> ScheduledSequence:
            return self._beside(self.prompts.chat(conversation(items[number]), options), priority)

        self._beside(self.prompts.chat(conversation(""), options), priority)  # what no item can have is told at once
        return Mapped(items, begun, self._driver, parallel)

    def by_outline(
        self,
        prompt: str | Messages,
        *,
        always: bool = False,
        constrained: bool = False,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> Outlined:
        """Answer a question, or the last message of a conversation, by its outline: points first, then their texts.

        The parts are written side by side and do not see one another. A question that does not suit that
        (`suiting.suiting_of`), or whose outline is malformed, gets one ordinary answer, and `fallback` says why.
        `always`: an outline is asked for whatever the question. `constrained`: a regular expression gives the outline
        its form (needs the extra `schema`). Options are those of each part, and of the ordinary answer. Raises as
        `chat`.
        """
        self._pool.check_open()
        messages: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        ordinary = self.prompts.chat(messages, options, self._known)
        question = _question(messages)
        suiting = _suiting(question, options)
        if always and question and not _form(options):
            suiting = Suiting(True, "an outline is asked for")
        asked, before = question or "", messages[:-1]
        steps = OutlineSteps(
            outline=partial(self._outline_stream, before, asked, options, priority, constrained=constrained),
            parts=partial(self._mapped_points, before, asked, options, priority),
            ordinary=lambda: TextStream(self._beside(ordinary, priority), self._driver),
        )
        return Outlined(steps, suiting)

    def _outline_stream(
        self, before: Messages, question: str, options: Options, priority: Priority, *, constrained: bool
    ) -> TextStream:
        """Begin an outline."""
        kept = {name: value for name, value in options.items() if name not in OF_PARTS}
        own: Options = {**kept, "max_tokens": OUTLINE_TOKENS}  # type: ignore[typeddict-item]
        if constrained:
            own["regex"] = outline_regex()
        request = self.prompts.chat([*before, *outline_turns(question)], own)
        return TextStream(self._beside(request, priority), self._driver)

    def _mapped_points(
        self, before: Messages, question: str, options: Options, priority: Priority, outline: Outline
    ) -> Mapped:
        """Begin the points of an outline. Raises ContextOverflow if they do not fit."""
        stop = options.get("stop") or self.prompts.stops
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        requests: list[Request] = []
        for number in range(1, len(outline.points) + 1):
            own: Options = {**options, "stop": (*stops, *point_stops(outline))}
            requests.append(self.prompts.chat([*before, *point_turns(question, outline, number)], own))
        return Mapped(
            outline.points, lambda number: self._beside(requests[number], priority), self._driver, len(requests)
        )

    def _beside(self, request: Request, priority: Priority) -> ScheduledSequence:
        """A sequence that runs beside others, and shares what they have read."""
        return ScheduledSequence(
            self._pool.reserve(),
            self._tokenizer,
            request,
            opens=self._opened_drafts,
            priority=priority,
            shares_prefix=True,
            counts_energy=False,
        )


def checked_items(items: Sequence[object]) -> tuple[str, ...]:
    """Items as texts. Raises BadSetting."""
    if isinstance(items, str):
        raise BadSetting("items are several texts, such as text.splitlines(), not one")
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) < len(items):
        raise BadSetting(f"an item must be a text, not {next(item for item in items if not isinstance(item, str))!r}")
    return texts


def item_prompt(instruction: str, item: str) -> str:
    """The message for an item: the instruction first, which all of them share."""
    return f"{instruction}\n\n{item}"


def _suiting(question: str | None, options: Options) -> Suiting:
    """Whether a question with these options suits an answer in parts."""
    if question is None:
        return Suiting(False, "the last message is no question in plain text")
    if form := _form(options):
        return Suiting(False, f"the answer is to follow a form ({form})")
    return suiting_of(question)


def _form(options: Options) -> str | None:
    """The option that gives an answer a form of its own, if there is one."""
    return next((name for name in FORMS if options.get(name)), None)


def _question(messages: Messages) -> str | None:
    """The text of the last message, if it is the user's and has only text."""
    last = Message.of(messages[-1])
    return last.content if last.role == "user" and isinstance(last.content, str) else None
