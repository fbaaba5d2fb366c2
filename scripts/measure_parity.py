"""How near the CPU device comes to exact arithmetic on a real model, beside llama.cpp on the same file.

Run from the repository root: `python scripts/measure_parity.py [MODEL] [--positions N] [--prompts N] [--answer-tokens N]
[--no-peer]`. MODEL is a path or the name of a model of the store (default: the starter model, pulled if it is not
there). The judge is the reference device: dequantised weights, float32 activations, float32 cache. Prints two tables:
- the divergence KL(reference || engine) of next-token distributions over passages that the model itself wrote: mean,
  median and 99th percentile in nats, and the mean as a multiple of llama.cpp's (skipped where it is not installed);
- greedy answers of the CPU device: how many of their tokens are not the reference's first choice at that place, and how
  far the reference's first choice lies before its second, and before the token chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PAGE, Batch, Device, DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.executor import Executor
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.store import STARTER_SOURCE, Store
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Evaluate = Callable[[Sequence[int]], Floats]
"""Tokens of a text in, logits float32[T, V] of all its positions out; valid until the next call."""

PASSAGE_TOKENS = 250
PASSES = 64
"""Tokens evaluated, and logits taken, at a time."""
LONGEST = 512
TEMPERATURE = 0.8
THREADS = 2

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a lighthouse keeper and a storm.",
    "Explain how a bicycle stays upright.",
    "Write a Python function that returns the prime numbers below n.",
    "Give me three tips for sleeping better.",
    "Summarise the causes of the First World War.",
    "Write a poem about the sea in winter.",
    "How do I make a simple tomato sauce?",
    "What is the difference between a virus and a bacterium?",
    "Describe the water cycle to a child.",
    "Write an e-mail to a colleague asking for a meeting on Monday.",
    "What are the planets of the solar system?",
    "If I have 12 apples and give away 5, how many do I have left? Explain.",
    "Translate 'Good morning, how are you?' into Spanish and French.",
    "What is photosynthesis?",
    "List five animals that live in the desert and say how they survive.",
    "Who was Marie Curie?",
    "What is the meaning of the word 'serendipity'?",
    "Suggest a name for a bakery and explain your choice.",
    "How does a computer store a picture?",
)


class Engine:
    """A whole model on a device, evaluating one text at a time."""

    def __init__(self, model: Model, device: Device) -> None:
        limits = Limits(LONGEST, LONGEST // PAGE, max_tokens=PASSES, max_outputs=PASSES)
        self._executor = Executor(device, device.compile(model.spec, model.file, limits), limits, "parity")

    def __call__(self, tokens: Sequence[int]) -> Floats:
        """Logits float32[T, V] of all positions of a text."""
        with self.text() as more:
            return np.concatenate([more(tokens[at : at + PASSES]) for at in range(0, len(tokens), PASSES)])

    @contextmanager
    def text(self) -> Iterator[Evaluate]:
        """A text that grows: each call takes its next tokens (at most PASSES) and gives their logits."""
        sequence = self._executor.create()

        def more(tokens: Sequence[int]) -> Floats:
            n_cached, order = self._executor.n_cached(sequence), np.arange(len(tokens), dtype=np.int32)
            ids, parents = np.array(tokens, np.int32), order - np.int32(1)
            batch = Batch(ids, np.full_like(order, sequence), order + np.int32(n_cached), parents, order)
            logits = self._executor.evaluate(batch).copy()
            self._executor.commit(sequence, order)
            return logits

        try:
            yield more
        finally:
            self._executor.free(sequence)

    def write(self, prompt: Sequence[int], n_tokens: int, choose: Callable[[Floats], int]) -> list[int]:
        """The prompt continued by `n_tokens` chosen tokens."""
        tokens = list(prompt)
        with self.text() as more:
            for at in range(0, len(prompt), PASSES):
                logits = more(prompt[at : at + PASSES])[-1]
            for _ in range(n_tokens):
                tokens.append(choose(logits))
                logits = more(tokens[-1:])[-1]
        return tokens

    def close(self) -> None:
        """Give back memory and threads."""
        self._executor.close()


@contextmanager
def llama_cpp_engine(path: Path) -> Iterator[Evaluate]:
    """llama.cpp on the same file; raises ImportError where llama-cpp-python is not installed."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(path), n_ctx=LONGEST, n_threads=THREADS, n_threads_batch=THREADS, logits_all=True, verbose=False
    )

    def evaluate(tokens: Sequence[int]) -> Floats:
        llama.reset()
        llama.eval(list(tokens))
        scores: Floats = llama.scores[: len(tokens)]
        return scores

    try:
        yield evaluate
    finally:
        llama.close()


def log_probabilities(logits: Floats) -> Doubles:
    """log softmax, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Doubles = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergences(reference: Floats, other: Floats) -> Doubles:
    """KL(reference || other) of each position, in nats."""
    expected, actual = log_probabilities(reference), log_probabilities(other)
    result: Doubles = (np.exp(expected) * (expected - actual)).sum(axis=-1)
    return result


def sampler(seed: int) -> Callable[[Floats], int]:
    """Draws tokens at TEMPERATURE."""
    random = np.random.Generator(np.random.PCG64(seed))

    def choose(logits: Floats) -> int:
        shares = np.exp(log_probabilities(logits[None] / np.float32(TEMPERATURE)))[0]
        return int(np.searchsorted(np.cumsum(shares), random.random() * shares.sum()))

    return choose


def prompts(model: Model, n_prompts: int) -> list[list[int]]:
    """The first prompts in the model's chat template, as tokens."""
    tokenizer = Tokenizer.from_metadata(model.file.metadata)
    template = ChatTemplate.from_metadata(model.file.metadata, tokenizer.vocabulary)
    texts = [template.render([Message("user", text)], add_generation_prompt=True) for text in PROMPTS[:n_prompts]]
    return [tokenizer.encode_rendered(text) for text in texts]


def passages(engine: Engine, model: Model, n_positions: int) -> list[list[int]]:
    """Texts of PASSAGE_TOKENS tokens that the model wrote (the last one shorter), `n_positions` in all."""
    starts = prompts(model, -(-n_positions // PASSAGE_TOKENS))
    lengths = [min(PASSAGE_TOKENS, n_positions - number * PASSAGE_TOKENS) for number in range(len(starts))]
    return [
        engine.write(start[:length], max(0, length - len(start)), sampler(number))
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]


def divergence(texts: list[list[int]], reference: Evaluate, engines: dict[str, Evaluate]) -> dict[str, Doubles]:
    """KL divergence from the reference at every position of all texts, by engine."""
    found: dict[str, list[Doubles]] = {name: [] for name in engines}
    for tokens in texts:
        expected = reference(tokens)
        for name, evaluate in engines.items():
            found[name].append(divergences(expected, evaluate(tokens)))
    return {name: np.concatenate(parts) for name, parts in found.items()}


@dataclass(frozen=True, slots=True)
class Departure:
    """A greedy token that is not the reference's first choice.

    `gap`: logit of the reference's first choice less its second's; `loss`: less that of the token chosen.
    """

    answer: int
    place: int
    gap: float
    loss: float


def departures(answers: list[tuple[int, list[int]]], reference: Evaluate) -> list[Departure]:
    """Where greedy answers (prompt length, tokens) leave the reference's own choices on the same text."""
    found = []
    for number, (n_prompt, tokens) in enumerate(answers):
        logits = reference(tokens)
        for place in range(n_prompt, len(tokens)):
            row = logits[place - 1]
            first, second = np.sort(row)[:-3:-1]
            if row[tokens[place]] < first:
                loss = float(first - row[tokens[place]])
                found.append(Departure(number, place - n_prompt, float(first - second), loss))
    return found


def greedy_answers(engine: Engine, model: Model, n_prompts: int, n_tokens: int) -> list[tuple[int, list[int]]]:
    """(prompt length, prompt and answer) of each prompt."""
    return [
        (len(prompt), engine.write(prompt, n_tokens, lambda logits: int(np.argmax(logits))))
        for prompt in prompts(model, n_prompts)
    ]


def divergence_table(found: dict[str, Doubles]) -> str:
    """The first table."""
    peer = found.get("llama.cpp")
    lines = ["KL from float32, nats     mean      median      99 %       mean / llama.cpp's"]
    for name, values in found.items():
        ratio = "" if peer is None else f"{values.mean() / peer.mean():.3f}"
        lines.append(
            f"{name:16s}    {values.mean():10.3e}  {np.median(values):10.3e}  {np.percentile(values, 99):10.3e}   {ratio}"
        )
    return "\n".join(lines)


def greedy_table(found: list[Departure], n_answers: int, n_tokens: int) -> str:
    """The second table."""
    largest = max((each.gap for each in found), default=0.0)
    worst = max((each.loss for each in found), default=0.0)
    lines = [
        f"greedy: {n_answers} answers, {n_answers * n_tokens} tokens, {len(found)} are not the reference's first choice",
        f"largest gap of its first two logits there: {largest:.3f}; largest loss against its first choice: {worst:.3f}",
    ]
    lines += [f"  answer {each.answer}, token {each.place}: gap {each.gap:.3f}, loss {each.loss:.3f}" for each in found]
    return "\n".join(lines)


def model_path(name: str | None) -> Path:
    """A path, or the file of a model of the store; the starter model by default."""
    store = Store()
    return (store.pull(STARTER_SOURCE) if name is None else store.find(name)).path


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence of the CPU device and of llama.cpp from float32.")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    path = model_path(options.model)
    with open_model(path, LONGEST) as model:
        cpu = Engine(model, CpuDevice(DeviceOptions(n_workers=THREADS)))
        reference = Engine(model, ReferenceDevice())
        rounded = Engine(model, ReferenceDevice("int8", "f16"))
        engines: dict[str, Evaluate] = {"edgeinfer cpu": cpu, "int8 reference": rounded}
        texts = passages(cpu, model, options.positions)
        if options.no_peer:
            found = divergence(texts, reference, engines)
        else:
            with llama_cpp_engine(path) as peer:
                found = divergence(texts, reference, {**engines, "llama.cpp": peer})
        print(f"{path.name}, {sum(map(len, texts))} positions\n{divergence_table(found)}", flush=True)
        answers = greedy_answers(cpu, model, options.prompts, options.answer_tokens)
        print(greedy_table(departures(answers, reference), len(answers), options.answer_tokens))
        for engine in (cpu, reference, rounded):
            engine.close()


if __name__ == "__main__":
    main()
