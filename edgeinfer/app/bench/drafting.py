"""Measures the gain from speculation: answers each conversation with and without drafting, in alternation.

In: a `BenchOpening`; jobs "drafting", one conversation each. Out: replies with a `DraftRun` for each sampling, way and
repeat. Samplings: that of `edgeinfer chat`, with all its settings, and one temperature. Ways: "off", "cold" (drafting
knows only what every start has) and "warm" (drafting has learned from earlier conversations, never from this one). The
order of the ways changes from repeat to repeat.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgeinfer.app.bench.subject import (
    AS_CHAT,
    BenchConversation,
    BenchJob,
    BenchOpening,
    BenchReply,
    Conditions,
    DraftRun,
    NotMeasurable,
)
from edgeinfer.app.opening.loading import generation_options
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.drafting import Draft, Walk
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.speculation.drafts import ModelDrafts
from edgeinfer.engine.speculation.session_drafts import SessionDrafts
from edgeinfer.graph.step import Floats, Int32s

LOOP_TOKENS = 24
"""An answer loops from where the same run of this many tokens comes for the second time,"""
LOOP_TIMES = 3
"""if that run comes this many times."""
DECILES = 10
SEED = 1


def load_for(opening: BenchOpening) -> LLM:
    """Load the model of an opening, ready to answer. Raises what loading raises."""
    how = opening.conditions
    return load(
        how.model,
        device=opening.executor,
        schedule=how.schedule,
        n_context=how.n_context,
        threads=how.threads,
        cores=how.cores,
        kv=how.kv,
        mode="max",
        spec=how.spec,
        verify_cost=how.verify_cost or None,
        ram_bytes=how.ram_bytes,
        approx=how.approx,
    )


@dataclass(slots=True)
class BenchSampling:
    """One way of sampling: its name, options of answers, the system prompt, and what "warm" has learned with it."""

    name: str
    options: Options
    system: str | None
    learnt: ModelDrafts


def samplings_of(how: Conditions, start: ModelDrafts) -> tuple[BenchSampling, ...]:
    """The samplings to measure; `start`: what drafting knows at first."""
    chat = generation_options(how.generation)
    seed = SEED if chat.get("seed") is None else chat["seed"]
    plain: Options = {"temperature": how.temp, "repeat_penalty": 1.0, "seed": seed}
    if how.temp:
        plain |= {"top_p": 0.95, "top_k": 0, "min_p": 0.0}
    return (
        BenchSampling(AS_CHAT, {**chat, "seed": seed}, how.generation.system, start.twin()),
        BenchSampling(f"temp {how.temp:g}" if how.temp else "greedy", plain, None, start.twin()),
    )


class DraftingBench:
    """Runs conversations; what "warm" has learned is kept from job to job."""

    def __init__(self, opening: BenchOpening) -> None:
        self._llm = load_for(opening)
        if self._llm.drafts is None:
            raise NotMeasurable(f"nothing is drafted on {opening.executor} with spec {opening.conditions.spec}")
        self._start: ModelDrafts = self._llm.drafts
        if self._start.n_primed < self._start.n_vocab:
            self._llm.prime()
        self._samplings = samplings_of(opening.conditions, self._start)

    def run(self, job: BenchJob) -> BenchReply:
        """Run a job's conversation `job.repeats` times in each way; `job.seed` chooses the first way."""
        if job.test != "drafting":
            raise NotMeasurable(f"opened for drafting, so there is no test {job.test!r}")
        runs = [run for sampling in self._samplings for run in self._run_sampled(job, sampling)]
        n_tokens = sum(run.n_tokens for run in runs if run.way == "off" and run.repeat == 0)
        return BenchReply({n_tokens: sum(run.seconds for run in runs)}, drafting=tuple(runs))

    def _run_sampled(self, job: BenchJob, sampling: BenchSampling) -> list[DraftRun]:
        """Run a job's conversation in all ways with one sampling."""
        (question,) = job.questions
        ways, runs = ("off", "cold", "warm"), []
        start, learnt, taught = self._start, sampling.learnt, sampling.learnt
        plain: list[tuple[int, ...]] = []
        for repeat in range(job.repeats):
            for place in range(len(ways)):
                way = ways[(place + repeat + job.seed) % len(ways)]
                drafts = None if way == "off" else start.twin() if way == "cold" else learnt.twin(learnt=True)
                run, answers = self._lead(question, sampling, job.n, drafts)
                plain = plain or answers
                runs.append(replace(run, way=way, repeat=repeat, same=answers == plain))
                if drafts is not None and way == "warm":
                    taught = drafts
        sampling.learnt = taught
        return runs

    def close(self) -> None:
        self._llm.close()

    def _lead(
        self, question: BenchConversation, sampling: BenchSampling, n_answer: int, drafts: ModelDrafts | None
    ) -> tuple[DraftRun, list[tuple[int, ...]]]:
        """Run one conversation one way; returns its figures and the tokens of its answers."""
        messages = [{"role": "system", "content": sampling.system}] if sampling.system else []
        parts: list[_Part] = []
        answers: list[tuple[int, ...]] = []
        with self._llm.session_with(lambda: drafts) as session:
            watch = DraftWatch.over(session.speculator) if session.speculator is not None else None
            for turn in question.turns:
                messages.append({"role": "user", "content": turn})
                wanted: Options = {**sampling.options, "max_tokens": n_answer}
                stream = session.chat(messages, **wanted)
                shown = Shown.read(stream)
                messages.append({"role": "assistant", "content": stream.text})
                answers.append(stream.tokens)
                kept = stream.tokens[: loop_start(stream.tokens)]
                kept_s = shown.seconds(self._llm.detokenize(kept) if len(kept) < len(stream.tokens) else None)
                parts.append(_Part.of(stream.tokens, len(kept), kept_s, shown.seconds(None), watch))
        return _joined(question.category, sampling.name, parts, watch), answers


@dataclass(slots=True)
class DraftWatch:
    """Records what a speculator drafts and which drafts are accepted, pass by pass."""

    passes: list[tuple[int, int, float]] = field(default_factory=list)
    """Per pass since `take`: tokens verified, tokens gained, modelled cost (one-token pass: 1; unknown: 0)."""
    drafts: list[tuple[Draft, Int32s, Floats]] = field(default_factory=list)
    """For the same passes: the draft, the accepted path, and the probability that the path reaches each node."""
    calibration: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0, 0.0] for _ in range(DECILES)])
    """By tenth of the estimated probability: candidates, the sum of their probabilities, and how many were accepted."""
    speculator: SessionDrafts | None = None

    @classmethod
    def over(cls, speculator: SessionDrafts) -> DraftWatch:
        """Record each pass that a speculator learns from."""
        watch, learn, note = cls(speculator=speculator), speculator.learn, speculator.timed

        def watched(draft: Draft, walked: Walk, seconds: float | None) -> None:
            n_checked = len(draft.tokens)
            watch.passes.append((n_checked, len(walked.tokens), speculator.costs.of_one(n_checked)))
            watch.drafts.append((draft, walked.path, speculator.reaches[:n_checked].copy()))
            learn(draft, walked, seconds)

        def timed(n_tokens: int, seconds: float, *, drafted: bool) -> None:
            if not drafted:
                watch.passes.append((1, n_tokens, speculator.costs.of_one(1)))
            note(n_tokens, seconds, drafted=drafted)

        speculator.learn = watched  # type: ignore[method-assign]
        speculator.timed = timed  # type: ignore[method-assign]
        return watch

    def take(self) -> list[tuple[int, int, float]]:
        """Return the passes so far and forget them; counts candidates here, to keep that out of the measured time."""
        passes, self.passes = self.passes, []
        drafts, self.drafts = self.drafts, []
        for draft, path, reaches in drafts:
            self._calibrate(draft, path, reaches)
        return passes

    def _calibrate(self, draft: Draft, path: Int32s, reaches: Floats) -> None:
        accepted = set(path.tolist())
        for node, parent in enumerate(draft.parents.tolist()):
            if parent in accepted and node:
                chance = float(reaches[node] / reaches[parent])
                tenth = self.calibration[min(int(chance * DECILES), DECILES - 1)]
                for place, value in enumerate((1.0, chance, float(node in accepted))):
                    tenth[place] += value


@dataclass(slots=True)
class Shown:
    """Records when an answer's text arrived: moments, and characters so far."""

    moments: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def read(cls, pieces: Iterable[str]) -> Shown:
        """Read an answer to its end."""
        shown, n_chars = cls(), 0
        for piece in pieces:
            n_chars += len(piece)
            shown.moments.append((time.perf_counter(), n_chars))
        shown.moments.append((time.perf_counter(), n_chars + 1))
        return shown

    def seconds(self, beginning: str | None) -> float:
        """Seconds from the first piece until this beginning of the text had arrived; None: until the end."""
        (first, _), (end, n_chars) = self.moments[0], self.moments[-1]
        wanted = n_chars if beginning is None else len(beginning)
        return next((moment for moment, n_shown in self.moments if n_shown >= wanted), end) - first


@dataclass(frozen=True, slots=True)
class _Part:
    """The figures of one answer: tokens after the first, passes, seconds, modelled cost of the passes."""

    n_tokens: int
    n_kept: int
    n_passes: int
    seconds: float
    cost: float
    drafting_s: float
    sizes: Mapping[int, int]
    sources: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, tokens: Sequence[int], n_kept: int, kept_s: float, seconds: float, watch: DraftWatch | None) -> _Part:
        """Compute the figures; the first `n_kept` tokens came before the answer began to loop and took `kept_s`."""
        n_tokens, n_kept = max(len(tokens) - 1, 0), max(n_kept - 1, 0)
        if watch is None or watch.speculator is None:
            return cls(n_tokens, n_kept, n_kept, kept_s, float(n_kept), 0.0, {}, {})
        passes, report, done, kept = watch.take(), watch.speculator.report(), 0, []
        for checked, given, cost in passes:
            if done >= n_kept:
                break
            done += given
            kept.append((checked, cost))
        return cls(
            n_tokens,
            n_kept,
            len(kept),
            kept_s,
            sum(cost for _, cost in kept),
            report.seconds * kept_s / seconds if seconds else 0.0,
            Counter(checked for checked, _ in kept),
            {name: (count.proposed, count.accepted) for name, count in report.sources.items()},
        )


def _joined(category: str, sampling: str, parts: Sequence[_Part], watch: DraftWatch | None) -> DraftRun:
    """Combine the answers of a conversation into one run, the first one without drafts until its caller says more."""
    sizes: Counter[str] = Counter()
    sources: dict[str, tuple[int, int]] = {}
    for part in parts:
        sizes.update({str(size): count for size, count in part.sizes.items()})
        for name, (proposed, accepted) in part.sources.items():
            before = sources.get(name, (0, 0))
            sources[name] = before[0] + proposed, before[1] + accepted
    calibration = () if watch is None else tuple((n, chance, right) for n, chance, right in watch.calibration)
    return DraftRun(
        category,
        "off",
        0,
        n_tokens=sum(part.n_tokens for part in parts),
        n_kept=sum(part.n_kept for part in parts),
        n_passes=sum(part.n_passes for part in parts),
        seconds=sum(part.seconds for part in parts),
        cost=sum(part.cost for part in parts),
        drafting_s=sum(part.drafting_s for part in parts),
        sizes=dict(sizes),
        sources=sources,
        calibration=calibration,
        looped=any(part.n_kept < part.n_tokens for part in parts),
        sampling=sampling,
    )


def loop_start(tokens: Sequence[int]) -> int:
    """How many tokens of an answer come before it repeats itself; all of them if it does not."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - LOOP_TOKENS + 1):
        found = places.setdefault(tuple(tokens[start : start + LOOP_TOKENS]), [])
        found.append(start)
        if len(found) == LOOP_TIMES:
            return found[0] + LOOP_TOKENS
    return len(tokens)
