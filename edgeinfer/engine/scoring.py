"""How likely given texts are: options after a prompt, and whole texts. Nothing is generated.

In: texts, or their tokens. Out: a `Score` for each, with the log probability of every token. The prompt is read once;
options continue branches of it, several in each pass; on a device that is batch-invariant each gets the same bits as
alone.

An option is tokenized together with the prompt, as the model would have seen the two in a text: white space at the
prompt's end belongs to the option (" yes" is a token, " " before it is none), and the option begins with the first
token that the prompt alone does not have. So do lm-evaluation-harness (`_encode_pair`) and, without the rule for white
space, llama.cpp's HellaSwag. After tokens or a conversation, whose tokens are settled, the option is tokenized alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import cast

from edgeinfer.engine.requests.adapters import AdapterScales
from edgeinfer.engine.requests.conversation import Messages
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.requests.prompts import Prompts
from edgeinfer.engine.requests.request import Options, Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.batcher import Batcher, NumberedRequest
from edgeinfer.engine.scheduler.retained import LEAST_SHARED
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.errors import BadSetting, ContextOverflow, EdgeInferError
from edgeinfer.models.text import Message, Tokenizer
from edgeinfer.steps import Progress, no_progress

PARALLEL = 32
"""Most texts that are scored at the same time."""
SHOWN = 40
"""Characters of an option that an error shows."""


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text is: natural logarithms of the probabilities of its tokens, each given all before it."""

    text: str
    logprobs: tuple[TokenLogprobs, ...]

    @property
    def logprob(self) -> float:
        """Log probability of the text."""
        return math.fsum(each.logprob for each in self.logprobs)

    @property
    def per_token(self) -> float:
        """Average log probability of a token."""
        return self.logprob / len(self.logprobs)

    @property
    def per_byte(self) -> float:
        """Log probability by byte of the text in UTF-8, which texts in different tokens can be compared by."""
        return self.logprob / max(1, len(self.text.encode()))

    @property
    def perplexity(self) -> float:
        """Perplexity: e to the power of the negative average log probability of a token."""
        return math.exp(-self.per_token)


def shares(logprobs: Sequence[float]) -> list[float]:
    """The probability of each option if it must be one of them: softmax."""
    most = max(logprobs)
    parts = [math.exp(each - most) for each in logprobs]
    return [part / math.fsum(parts) for part in parts]


class TextScorer:
    """The methods of `LLM` that score texts."""

    _pool: Pool
    _driver: StepDriver
    _tokenizer: Tokenizer
    prompts: Prompts

    def score(
        self,
        prompt: str | Sequence[int] | Messages,
        options: Sequence[str],
        *,
        top: int = 0,
        lora: AdapterScales | None = None,
        progress: Progress = no_progress,
    ) -> list[Score]:
        """How likely each option is after a text, tokens or a conversation; usable from any thread.

            paris, london = llm.score("The capital of France is", [" Paris", " London"])
            assert paris.logprob > london.logprob

        An option is taken as it is: most have to begin with a space. Special tokens spelled in it are those tokens.
        `top`: tell this many likely tokens in place of each token. `lora` as in answers, which go before if they are
        interactive. Raises BadSetting, ContextOverflow, EngineClosed, UnsupportedModel for a model that only embeds.
        """
        self._pool.check_open()
        self._pool.check_writes()
        if isinstance(options, str) or not options or not all(isinstance(option, str) for option in options):
            raise BadSetting("score takes a list of options, which are texts, at least one; write [option]")
        wanted, n_context = _wanted(top, lora), self.prompts.n_context
        before = self._before(prompt, wanted)
        joined = [self._joined(prompt, before, option) for option in options]
        for option, (tokens, _) in zip(options, joined, strict=True):
            if len(tokens) > n_context:
                raise ContextOverflow(
                    f"the prompt with the option {_shown(option)} has {len(tokens)} tokens and the context holds "
                    f"{n_context}; shorten it, or load the model with a larger context (--ctx, n_context)",
                    len(tokens),
                    n_context,
                )
        requests = [self.prompts.text(tokens, {**wanted, "scored_from": first}) for tokens, first in joined]
        requests[0].check(n_context)
        head = requests[0].prompt[: min(first for _, first in joined) - 1]
        for request in requests:
            head = head[: n_common(head, request.prompt)]
        with self._reading(self.prompts.text(head, wanted), progress) as read:
            found = self._scored(requests, read, progress)
        return [Score(option, each) for option, each in zip(options, found, strict=True)]

    def logprobs(
        self,
        text: str | Sequence[int],
        *,
        top: int = 0,
        lora: AdapterScales | None = None,
        progress: Progress = no_progress,
    ) -> Score:
        """How likely a text, or its tokens, is: of each token but the first, which nothing precedes; as `score`.

            llm.logprobs("The capital of France is Paris.").perplexity

        A text that is longer than the context is read in parts that overlap by half of it, each begun by the token that
        texts begin with, if the model has one: every token is told once, with at least half a context before it.
        """
        self._pool.check_open()
        self._pool.check_writes()
        wanted = _wanted(top, lora)
        whole = self.prompts.text(text, {**wanted, "scored_from": 1})
        whole.check(max(self.prompts.n_context, len(whole.prompt)))
        if len(whole.prompt) < 2:
            raise BadSetting("nothing precedes the text's only token; give more text")
        parts = [
            self.prompts.text(tokens, {**wanted, "scored_from": first}) for tokens, first in self._parts(whole.prompt)
        ]
        found = self._scored(parts, None, progress)
        told = self._tokenizer.decode(whole.prompt[1:])
        if isinstance(text, str) and self._tokenizer.vocabulary.is_control(whole.prompt[0]):
            told = text
        return Score(told, tuple(each for part in found for each in part))

    def _parts(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Parts of a text that fit in the context, each with the number of its first token that is to be told."""
        vocabulary, n_context = self._tokenizer.vocabulary, self.prompts.n_context
        begins = vocabulary.add_bos and tokens[0] == vocabulary.bos_id
        lead = tuple(tokens[:1]) if begins else ()
        done = min(len(tokens), n_context)
        yield tokens[:done], 1
        while done < len(tokens):
            end = min(len(tokens), done + max(1, n_context // 2))
            start = end - (n_context - len(lead))
            yield (*lead, *tokens[start:end]), len(lead) + done - start
            done = end

    def _before(self, prompt: str | Sequence[int] | Messages, wanted: Options) -> list[int]:
        """The tokens of a prompt with nothing after it; of a text without white space at its end."""
        if isinstance(prompt, str):
            return list(self.prompts.text(prompt.rstrip(), {}).prompt)
        if prompt and isinstance(prompt[0], Message | Mapping):
            return list(self.prompts.chat(cast("Messages", prompt), {**wanted, "keeps_all": True}).prompt)
        return self.prompts.checked(cast("Sequence[int]", prompt))

    def _joined(self, prompt: str | Sequence[int] | Messages, before: list[int], option: str) -> tuple[list[int], int]:
        """The tokens of a prompt with an option after it, and the number of the option's first. Raises BadSetting."""
        if not option:
            raise BadSetting("an option is empty, which no token stands for; give each some text")
        if isinstance(prompt, str):
            tokens = list(self.prompts.text(prompt + option, {}).prompt)
        else:
            tokens = [*before, *self._tokenizer.encode(option, add_special=False, goes_on=True)]
        first = n_common(before, tokens)
        if first == 0:
            raise BadSetting(
                f"no token of the prompt precedes the option {_shown(option)}; give a longer prompt for it to follow"
            )
        if first == len(tokens):
            raise BadSetting(f"the option {_shown(option)} has no token after this prompt; give it other text")
        return tokens, first

    @contextmanager
    def _reading(self, request: Request, progress: Progress) -> Iterator[CachedSequence | None]:
        """Read what several texts begin with, to be branched; None if it is short, or nothing can be shared.

        It stays cached for later requests that begin with it, as long as nothing needs the memory.
        """
        admission = self._driver.scheduler.admission
        if len(request.prompt) < LEAST_SHARED or not admission.shares:
            yield None
            return
        cached = self._pool.open()
        try:
            with self._pool.lock:
                admission.prefixes.copy(cached, request.prompt, request.scales)
            if cached.n_cached < len(request.prompt):
                own = cached, self._tokenizer, replace(request, progress=progress)
                sequence = ScheduledSequence(*own, priority="background", counts_energy=False)
                TextStream(sequence, self._driver).read()
            yield cached
        except BaseException:
            cached.close()
            raise
        with self._pool.lock:
            admission.prefixes.keep(cached)

    def _scored(
        self, requests: Sequence[Request], head: CachedSequence | None, progress: Progress
    ) -> list[tuple[TokenLogprobs, ...]]:
        """The log probabilities of each request's prompt, several at a time. Raises what ends any of them."""

        def branch(_: int) -> CachedSequence:
            assert head is not None
            return head.branch()

        batcher = Batcher(self._driver, self._tokenizer, PARALLEL, reserve=None if head is None else branch)
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        numbered = (NumberedRequest(number, request) for number, request in enumerate(requests))
        with closing(batcher.answers(numbered)) as answers:
            for answer in answers:
                if answer.error is not None:
                    raise answer.error
                if answer.stats is None or answer.stats.finish_reason == "cancelled":
                    raise EdgeInferError("scoring was stopped before all texts were read")
                found[answer.number] = answer.prompt_logprobs
                progress("scoring", len(found), len(requests))
        return [found[number] for number in range(len(requests))]


def _wanted(top: int, lora: AdapterScales | None) -> Options:
    """Options of requests that are only read."""
    wanted: Options = {"max_tokens": 0, "logprobs": top, "temperature": 0}
    return wanted if lora is None else {**wanted, "lora": lora}


def _shown(option: str) -> str:
    return repr(option if len(option) <= SHOWN else f"{option[:SHOWN]}…")
