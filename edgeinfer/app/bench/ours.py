"""Our devices as benchmark subjects: single passes through the executor, whole answers, or the times of a pass's ops.

In: a `BenchOpening` that names a device. Out: a `BenchSubject`. Uses the engine as any program does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from edgeinfer.app.bench.drafting import DraftingBench, load_for
from edgeinfer.app.bench.subject import (
    BenchJob,
    BenchOpening,
    BenchReply,
    BenchSubject,
    Conditions,
    NotMeasurable,
    OpTime,
    Stepped,
    Tokens,
    answered,
    random_tokens,
)
from edgeinfer.backends.base import DeviceOptions, Lane, open_device
from edgeinfer.backends.capabilities import KernelTime
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.limits import limits_for, with_budget
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.offload.weight_placement import WeightBudget, place_and_pack
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.probing.core_clock import CoreClock
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.graph.step import Batch, Step, whole_blocks
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import open_model
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.machine.topology import usable_cores


def open_ours(opening: BenchOpening) -> BenchSubject:
    """Load the model on one of our devices. Raises EdgeInferError."""
    if opening.purpose == "ops":
        return OpProfile(opening)
    if opening.purpose == "drafting":
        return DraftingBench(opening)
    if opening.purpose == "answers":
        return Answers(load_for(opening))
    return Stepped(SequencePasses(opening))


def _device_options(how: Conditions) -> DeviceOptions:
    return DeviceOptions(how.threads, usable_cores() if how.cores is None else how.cores)


class SequencePasses:
    """Passes of one sequence through our executor."""

    def __init__(self, opening: BenchOpening) -> None:
        how = opening.conditions
        load = LoadOptions(device=opening.executor, n_context=how.n_context, approx=how.approx, schedule=how.schedule)
        subject = open_subject(how.model, load)
        self._file = subject.file
        limits = with_budget(limits_for(how.n_context, kv=how.kv, spec=subject.spec), subject.spec, how.approx.kv)
        options = _device_options(how)
        try:
            if how.ram_bytes is not None and subject.spec is not None:
                name, holding = how.model.stem, WeightBudget(how.ram_bytes)
                limits, _ = place_and_pack(subject.spec, subject.gguf, name, fingerprint(subject.gguf), limits, holding)
            self._executor = open_evaluator(subject, limits, options, load)
        except BaseException:
            self._file.close()
            raise
        own = None if subject.spec is None else subject.spec.n_vocab
        program = self._executor.capabilities.program
        self.n_vocab = own or 0 if program is None else program.n_vocab
        self._file.release()
        self._sequence = self._executor.create()

    @property
    def reading(self) -> WeightReads:
        """Bytes read so far of weights that do not stay in memory."""
        return self._executor.reading

    @property
    def n_cached(self) -> int:
        return self._executor.n_cached(self._sequence)

    def evaluate(self, tokens: Tokens, *, every: bool) -> None:
        """Evaluate tokens after the cached ones and keep them; with logits of `every` token, or of the last."""
        limits, is_answer = self._executor.limits, every or len(tokens) == 1
        for start in range(0, len(tokens), limits.max_tokens):
            part = tokens[start : start + limits.max_tokens]
            last = start + len(part) == len(tokens)
            order = np.arange(len(part), dtype=np.int32)
            outputs = order if every else order[-1:] if last else order[:0]
            sequences = np.full(len(part), self._sequence, np.int32)
            positions = order + np.int32(self.n_cached)
            blocks = None if is_answer else whole_blocks(self.n_cached, len(part))
            batch = Batch(part, sequences, positions, order - 1, outputs, blocks=blocks)
            self._executor.evaluate(batch.within(limits.kv_budget, 0 if is_answer else len(part)))
            self._executor.commit(self._sequence, order)

    def truncate(self, n_cached: int) -> None:
        """Drop the cached tokens from n_cached on."""
        if self._executor.truncate(self._sequence, n_cached) < n_cached:  # no state is available at that position
            self._executor.pretend(self._sequence, n_cached)

    def close(self) -> None:
        self._executor.close()
        self._file.close()


class Answers:
    """Whole greedy conversations, from the question to the last token of the answer, as a user sees them."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def run(self, job: BenchJob) -> BenchReply:
        """Run the job's conversations. Raises NotMeasurable for any other job."""
        if job.test != "chat":
            raise NotMeasurable(f"opened for chat, so there is no test {job.test!r}")
        turns: list[tuple[int, int, int]] = []
        seconds: defaultdict[str, float] = defaultdict(float)
        tokens: defaultdict[str, int] = defaultdict(int)
        steps = 0
        for question in job.questions:
            started = time.perf_counter()
            led = self._lead(question.turns, job.n)
            seconds[question.category] += time.perf_counter() - started
            lengths = tuple((stats.n_cached, stats.n_prompt - stats.n_cached, _sampled(stats)) for stats in led)
            tokens[question.category] += answered(lengths)
            steps += sum(stats.steps for stats in led)
            turns += lengths
        return BenchReply(
            {sum(tokens.values()): sum(seconds.values())},
            accepted_per_step=sum(tokens.values()) / steps if steps else None,
            turns=tuple(turns),
            categories={category: tokens[category] / seconds[category] for category in tokens},
        )

    def close(self) -> None:
        self._llm.close()

    def _lead(self, turns: tuple[str, ...], n_answer: int) -> list[Stats]:
        """Run one conversation in its own session; returns the stats of each answer."""
        messages: list[dict[str, str]] = []
        led = []
        with self._llm.session() as session:
            for turn in turns:
                messages.append({"role": "user", "content": turn})
                stream = session.chat(messages, temperature=0.0, max_tokens=n_answer)
                messages.append({"role": "assistant", "content": stream.read()})
                assert stream.stats is not None
                led.append(stream.stats)
        return led


def _sampled(stats: Stats) -> int:
    """Tokens of an answer, including the one that ended it."""
    return stats.n_generated + (stats.finish_reason == "stop")


PROFILED_PASSES = 15


class OpProfile:
    """A lane opened for profiling."""

    def __init__(self, opening: BenchOpening) -> None:
        how = opening.conditions
        self._limits = limits_for(how.n_context, kv=how.kv)
        self._model = open_model(how.model, how.n_context, how.approx.threshold, block_budget=how.approx.prefill)
        self._device = open_device(opening.executor, _device_options(how))
        self._lane: Lane = self._device.compile(self._model.spec, self._model.file, self._limits)

    def run(self, job: BenchJob) -> BenchReply:
        """Profile passes of n tokens (at most one pass's limit) and reply with the median of each op's times."""
        op_times = self._lane.capabilities.op_times
        if op_times is None:
            raise NotMeasurable(f"{self._device.name} does not time its ops")
        n_tokens = min(job.n, self._limits.max_tokens)
        steps = [self._placed(n_tokens, job.depth) for _ in range(PROFILED_PASSES)]
        profiles = [op_times.profile(step) for step in steps][1:]
        ops = tuple(_median([profile[place] for profile in profiles]) for place in range(len(profiles[0])))
        seconds = sum(one.busy_s + one.waiting_s for one in ops)
        overhead, python_s = asdict(op_times.overhead()), self._python_s(steps)
        return BenchReply({n_tokens: seconds}, ops=ops, overhead=overhead, python_s=python_s, clock_hz=CoreClock().hz())

    def _python_s(self, steps: Sequence[Step]) -> float:
        """Seconds of a pass outside of compiled code: the median of passes without profiling."""
        workers, outside = self._lane.capabilities.workers, []
        if workers is None:
            return 0.0
        for step in steps:
            started = time.perf_counter()
            self._lane.run(step)
            outside.append(time.perf_counter() - started - workers.seconds)
        return float(np.median(outside))

    def close(self) -> None:
        self._lane.close()
        self._device.close()
        self._model.close()

    def _placed(self, n_tokens: int, depth: int) -> Step:
        """A pass over one sequence's tokens after `depth` cached ones, with the logits of the last token."""
        states = self._lane.capabilities.states
        cache = KVCache(self._limits.n_pages, self._limits.n_context, 0 if states is None else states.n_slots)
        sequence = cache.create()
        for start in range(0, depth, self._limits.max_tokens):
            count = min(self._limits.max_tokens, depth - start)
            cache.place(self._batch(sequence, start, count))
            cache.commit(sequence, np.arange(count, dtype=np.int32))
        return cache.place(self._batch(sequence, depth, n_tokens)).step

    def _batch(self, sequence: int, start: int, count: int) -> Batch:
        order = np.arange(count, dtype=np.int32)
        tokens = random_tokens(start, count, self._model.spec.n_vocab)
        sequences, blocks = np.full(count, sequence, np.int32), whole_blocks(start, count)
        return Batch(tokens, sequences, order + np.int32(start), order - 1, order[-1:], blocks=blocks)


def _median(times: Sequence[KernelTime]) -> OpTime:
    busy, waiting = (float(np.median(values)) for values in zip(*((t.busy_s, t.waiting_s) for t in times), strict=True))
    return OpTime(times[0].op, times[0].kernel, times[0].calls, busy, waiting, times[0].bytes_read)
