"""Asking a model for several answers at once: the method of `LLM`, and how one of them is kept.

In: a conversation or a text, options as for one answer, the names of a pick and a strategy. Out: a `Several`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.requests.told_chat import Known
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.several.answer_forms import Form, form_of
from edgeinfer.engine.several.forks import AnswerSequences
from edgeinfer.engine.several.leading import Potential, planned
from edgeinfer.engine.several.picking import Check, Picking
from edgeinfer.engine.several.several import Led, Several
from edgeinfer.engine.several.strategies import STRATEGIES
from edgeinfer.engine.several.waiting import WaitingAnswers
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Floats
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import Priority
from edgeinfer.scheduling.several.budgets import Budget, TogetherS
from edgeinfer.scheduling.several.picks import PICKS
from edgeinfer.scheduling.several.samples import Rules

MOST_ANSWERS = 64
LIKENED = 2048
"""Characters of a text that are compared with others."""


class SeveralAsker:
    """The method of `LLM` that asks for several answers."""

    _pool: Pool
    _driver: StepDriver
    _tokenizer: Tokenizer
    prompts: Prompts
    _known: Known
    _opened_drafts: Callable[[], ClosingSpeculator | None]
    drafts: ModelDrafts | None
    embed: Callable[[Sequence[str]], list[Floats]]

    def several(
        self,
        prompt: str | Messages,
        n: int,
        *,
        pick: str = "vote",
        answer: str | Form = "auto",
        enough: int = 0,
        confidence: float = 1.0,
        most_entropy: float | None = None,
        check: Check | None = None,
        lead: str = "independent",
        potential: Potential | None = None,
        most_tokens: int = 0,
        most_s: float = 0.0,
        priority: Priority = "interactive",
        **options: Unpack[Options],
    ) -> Several:
        """Write `n` answers to a conversation, or to continue a text, side by side, and keep one of them.

            several = llm.several([{"role": "user", "content": "What is 17 + 5?"}], 4, pick="vote", max_tokens=40)
            print(several.read(), several.choice)

        `pick`: how: vote, weighted, shortest, first, likely, check, medoid (`scheduling.several.picks`). `answer`: what
        of a text counts for votes (`answer_forms.form_of`). `enough`: how many finished answers the pick is content
        with; 0: as it says itself. `confidence`: votes also stop once the leader is that likely to stay ahead;
        `most_entropy`: once three or more votes have no higher entropy, in nats. `check`: whether an answer is right,
        for the pick check; runs in a thread. `most_tokens`, `most_s`: limits of all answers together, which end those
        that go on; 0: none; with `max_tokens` answers wait until they can come to their end within these. `lead`: which
        answers are written: independent, uncertain, cut, particles (`engine.several.strategies`), with options as in
        "uncertain:entropy=1.5,others=2". `potential`: how good beginnings of answers are, for particles. With a seed,
        answers have that seed and those that follow it. Raises as `chat`, and BadSetting.
        """
        self._pool.check_open()
        picking = self._picking(pick, answer, Rules(enough, confidence, most_entropy), check)
        if not 1 <= n <= MOST_ANSWERS:
            raise BadSetting(f"n cannot be {n}: several answers are 1 to {MOST_ANSWERS}")
        if most_tokens < 0 or most_s < 0:
            raise BadSetting("most_tokens and most_s cannot be negative; 0 is no limit")
        budget = Budget(most_tokens, most_s)
        if "logprobs" in picking.pick.needs:
            options.setdefault("logprobs", 0)
        plan = planned(STRATEGIES.get, lead, potential)
        of_forks = options.get("logprobs")
        if plan.n_logprobs is not None:
            options["logprobs"] = max(options.get("logprobs") or 0, plan.n_logprobs)

        def request(number: int) -> Request:
            return replace(self._request_of(prompt, number, options), entropies=plan.reads_entropy)

        own = request(0)
        if n > 1 and plan.draws and own.sampling.temperature == 0:
            raise BadSetting("with temperature 0 all answers are the same; set it above 0 (0.7, say)")
        leader, n_first, waiting = plan.begin(n, own, self._tokenizer) if n > 1 else None, plan.n_first(n), None
        if leader is None and (budget.most_tokens or budget.most_s):
            waiting = WaitingAnswers(n, budget, len(own.prompt), own.max_tokens, self._together_s)
            n_first = waiting.first()
        led = Led(n_first, n, leader, waiting)
        of_forks = own.logprobs if plan.reads_forks else of_forks
        sequences = AnswerSequences(self._pool, self._tokenizer, self._opened_drafts, priority, request, of_forks)
        return Several(sequences, self._driver, replace(picking, budget=budget), led)

    @property
    def _together_s(self) -> TogetherS | None:
        """Seconds of passes, as they are known to those who draft; None if nothing is."""
        if self.drafts is None or not self.drafts.costs.seconds_together(1, 0):
            return None
        return self.drafts.costs.seconds_together

    def _picking(self, pick: str, answer: str | Form, rules: Rules, check: Check | None) -> Picking:
        """How one is kept. Raises BadSetting."""
        if pick not in PICKS:
            raise BadSetting(f"pick cannot be {pick!r}; there are: {', '.join(PICKS.keys())}")
        if rules.most_entropy is not None and not rules.most_entropy >= 0:
            raise BadSetting("most_entropy must be 0 or more, in nats; 0 wants all answers so far to agree")
        if rules.enough < 0 or not 0 < rules.confidence <= 1:
            raise BadSetting("enough must be 0 or more, and confidence above 0 and at most 1")
        chosen = PICKS.get(pick)
        if ("checks" in chosen.needs) != (check is not None):
            raise BadSetting("the pick check needs a check, a function or command, and no other pick takes one")
        likeness = self._likeness if "likeness" in chosen.needs else None
        return Picking(chosen, form_of(answer), rules, check, likeness)

    def _request_of(self, prompt: str | Messages, number: int, options: Options) -> Request:
        """The request of an answer, with a seed and a constraint of its own."""
        seed = options.get("seed")
        seeded: Options = options if seed is None else {**options, "seed": seed + number}
        if isinstance(prompt, str):
            return self.prompts.text(prompt, seeded)
        return self.prompts.chat(prompt, seeded, self._known)

    def _likeness(self, texts: Sequence[str]) -> list[float]:
        """Average cosine of each text's embedding with the others'. Raises UnsupportedModel where there are none."""
        rows = np.stack(self.embed([text[:LIKENED] or " " for text in texts]))
        cosines = rows @ rows.T
        return [float(each) for each in (cosines.sum(axis=1) - np.diag(cosines)) / max(1, len(texts) - 1)]
