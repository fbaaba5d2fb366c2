"""Measures how close the CPU device is to exact arithmetic on a real model, beside llama.cpp on the same file.

Run from the repository root: `python scripts/measure_parity.py [MODEL] [--positions N] [--answers N] [--no-peer]`.
MODEL is a path or the name of a model in the store (default: the starter model, downloaded if it is not there). The
reference device is the standard: dequantised weights, float32 activations, float32 cache. Prints two tables:
- the divergence KL(reference || engine) of next-token distributions over passages that the model itself wrote: mean,
  median and 99th percentile in nats, and the mean as a multiple of llama.cpp's;
- along greedy answers of the CPU device, the positions where an engine's first choice is not the reference's: how many,
  and by how much the reference's first choice leads its second there (the gap) and the engine's first (the loss). An
  answer leaves the reference's only at the first such position; what follows is another text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.meanings import FORMS
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.store import STARTER_SOURCE, ModelStore
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.settings import KVKind

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Evaluate = Callable[[Sequence[int]], Floats]
"""Tokens of a text in, logits float32[T, V] of all its positions out; valid until the next call."""

Answers = list[tuple[int, list[int]]]
"""Prompt length, and the tokens of prompt and answer."""

PASSAGE_TOKENS = 250
ANSWER_TOKENS = 64
PASSES = 64
"""Tokens evaluated, and logits returned, at a time."""
LONGEST = 512
TEMPERATURE = 0.8
THREADS = 2
PEER = "llama.cpp"
ROUNDED = ReferenceDevice("int8", "f16")
ROUNDED_KV = [kv for kv, forms in FORMS.items() if forms is not None]

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

    def __init__(self, model: Model, device: Device, kv: KVKind = "f16") -> None:
        limits = Limits(LONGEST, LONGEST // PAGE, max_tokens=PASSES, max_outputs=PASSES, kv=kv)
        self._executor = Executor(device, device.compile(model.spec, model.file, limits), limits, "parity")

    def __call__(self, tokens: Sequence[int]) -> Floats:
        """Logits float32[T, V] of all positions of a text."""
        with self.text() as more:
            return np.concatenate([more(tokens[at : at + PASSES]) for at in range(0, len(tokens), PASSES)])

    @contextmanager
    def text(self) -> Iterator[Evaluate]:
        """A growing text: each call takes its next tokens (at most PASSES) and returns their logits."""
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
        """Release memory and threads."""
        self._executor.close()


@cache
def _silence() -> Any:
    """A log callback that drops llama.cpp's messages. Cached, as the library calls it for the life of the process."""
    import llama_cpp

    return llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """llama.cpp on a file, evaluating one text at a time. Raises ImportError if llama-cpp-python is not installed.

    Weights keep the file's layout: llama.cpp's repacked ones crash on CPUs with AMX in some of its versions. A rounded
    cache (Q8_0 and Q4_0, as llama.cpp has them) needs its flash attention, so compare it with a float16 cache of that.
    """

    def __init__(self, path: Path, kv: KVKind = "f16", *, is_flash: bool = False) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_silence(), None)
        wanted = llama_cpp.llama_model_default_params()
        wanted.use_extra_bufts = False
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), wanted)
        limits = llama_cpp.llama_context_default_params()
        limits.n_ctx = limits.n_batch = LONGEST
        limits.n_threads = limits.n_threads_batch = THREADS
        on, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        limits.flash_attn_type = on if is_flash else off
        types = {"q8": llama_cpp.GGML_TYPE_Q8_0, "q4": llama_cpp.GGML_TYPE_Q4_0}
        forms = FORMS[kv]
        if forms is not None:
            limits.type_k, limits.type_v = (types[form] for form in forms)
        self._context = llama_cpp.llama_init_from_model(self._model, limits)
        self._batch = llama_cpp.llama_batch_init(LONGEST, 0, 1)
        self._n_vocab = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))

    def __call__(self, tokens: Sequence[int]) -> Floats:
        """Logits float32[T, V] of all positions of a text."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, True
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        failed = self._api.llama_decode(self._context, batch)
        if failed:
            raise RuntimeError(f"llama_decode gave {failed} for {len(tokens)} tokens")
        shape = (len(tokens), self._n_vocab)
        logits: Floats = np.ctypeslib.as_array(self._api.llama_get_logits(self._context), shape)
        return logits

    def close(self) -> None:
        """Release the context and the weights."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def log_probabilities(logits: Floats) -> Floats:
    """log softmax of float32[..., V]."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return shifted


def divergences(reference: Floats, other: Floats) -> Doubles:
    """KL(reference || other) of each position, in nats."""
    expected = log_probabilities(reference)
    difference = expected - log_probabilities(other)
    result: Doubles = np.einsum("tv,tv->t", np.exp(expected), difference, dtype=np.float64)
    return result


def sampler(seed: int) -> Callable[[Floats], int]:
    """Draws tokens at temperature TEMPERATURE."""
    random = np.random.Generator(np.random.PCG64(seed))

    def choose(logits: Floats) -> int:
        shares = np.exp(log_probabilities(logits / np.float32(TEMPERATURE))).cumsum(dtype=np.float64)
        return int(np.searchsorted(shares, random.random() * shares[-1]))

    return choose


def prompts(model: Model, n_prompts: int) -> list[list[int]]:
    """The first prompts in the model's chat template, as tokens."""
    tokenizer = Tokenizer.from_metadata(model.file.metadata)
    template = ChatTemplate.from_metadata(model.file.metadata, tokenizer.vocabulary)
    texts = [template.render([Message("user", text)], add_generation_prompt=True) for text in PROMPTS[:n_prompts]]
    return [tokenizer.encode_rendered(text) for text in texts]


def passages(engine: Engine, model: Model, n_positions: int) -> list[list[int]]:
    """Texts of PASSAGE_TOKENS tokens that the model wrote (the last one shorter), `n_positions` in total."""
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
    """A position where an engine's first choice is not the reference's.

    `gap`: logit of the reference's first choice minus that of its second; `loss`: minus that of the engine's first
    choice.
    """

    answer: int
    place: int
    gap: float
    loss: float


def departures(answers: Answers, reference: Evaluate, engines: dict[str, Evaluate]) -> dict[str, list[Departure]]:
    """The departures of each engine from the reference along the same answers, by engine."""
    found: dict[str, list[Departure]] = {name: [] for name in engines}
    for number, (n_prompt, tokens) in enumerate(answers):
        expected = reference(tokens)
        for name, evaluate in engines.items():
            chosen = evaluate(tokens).argmax(axis=-1)
            for place in range(n_prompt - 1, len(tokens) - 1):
                row = expected[place]
                second, first = np.partition(row, -2)[-2:]
                loss = float(first - row[chosen[place]])
                if loss > 0:
                    found[name].append(Departure(number, place - n_prompt + 1, float(first - second), loss))
    return found


def first_of_each(found: list[Departure]) -> list[Departure]:
    """The first departure of each answer, where it leaves the reference's."""
    return list({each.answer: each for each in reversed(found)}.values())[::-1]


def greedy_answers(engine: Engine, model: Model, n_answers: int) -> Answers:
    """ANSWER_TOKENS tokens for each of the first prompts."""
    return [
        (len(prompt), engine.write(prompt, ANSWER_TOKENS, lambda logits: int(np.argmax(logits))))
        for prompt in prompts(model, n_answers)
    ]


def divergence_table(found: dict[str, Doubles]) -> str:
    """The first table."""
    peer = found.get(PEER)
    lines = [f"{'KL from float32, nats':24}{'mean':>12}{'median':>12}{'99 %':>12}{'mean / ' + PEER:>20}"]
    for name, values in found.items():
        ratio = "" if peer is None else f"{values.mean() / peer.mean():.3f}"
        numbers = (values.mean(), np.median(values), np.percentile(values, 99))
        lines.append(f"{name:24}" + "".join(f"{number:12.3e}" for number in numbers) + f"{ratio:>20}")
    return "\n".join(lines)


def departure_table(found: dict[str, list[Departure]], answers: Answers) -> str:
    """The second table, and each departure of the first engine."""
    n_tokens = sum(len(tokens) - n_prompt for n_prompt, tokens in answers)
    lines = [f"{f'greedy, {n_tokens} tokens':24}{'depart':>12}{'max gap':>12}{'max loss':>12}{'answers left, gap':>20}"]
    for name, own in found.items():
        gap, loss = (max((getattr(each, what) for each in own), default=0.0) for what in ("gap", "loss"))
        firsts = first_of_each(own)
        left = f"{len(firsts)} of {len(answers)}, {max((each.gap for each in firsts), default=0.0):.3f}"
        lines.append(f"{name:24}{len(own):12}{gap:12.3f}{loss:12.3f}{left:>20}")
    for each in next(iter(found.values())):
        lines.append(f"  answer {each.answer}, token {each.place}: gap {each.gap:.3f}, loss {each.loss:.3f}")
    return "\n".join(lines)


def model_path(name: str | None) -> Path:
    """A path, or the file of a model in the store; the starter model by default."""
    store = ModelStore()
    return (store.pull(STARTER_SOURCE) if name is None else store.find(name)).path


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence of the CPU device and of llama.cpp from float32.")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--answers", type=int, default=len(PROMPTS))
    parser.add_argument("--no-peer", action="store_true", help="leave llama.cpp out")
    options = parser.parse_args()
    path = model_path(options.model)
    with open_model(path, LONGEST) as model, ExitStack() as opened:

        def open_engine(device: Device, kv: KVKind = "f16") -> Engine:
            engine = Engine(model, device, kv)
            opened.callback(engine.close)
            return engine

        reference = open_engine(ReferenceDevice())
        device = CpuDevice(DeviceOptions(n_workers=THREADS))
        cpu = open_engine(device)
        engines: dict[str, Evaluate] = {
            "edgeinfer cpu": cpu,
            **{f"edgeinfer cpu, {kv} kv": open_engine(device, kv) for kv in ROUNDED_KV},
            "reference, int8": open_engine(ROUNDED),
        }
        if not options.no_peer:
            engines[PEER] = opened.enter_context(closing(LlamaCpp(path)))
        texts = passages(cpu, model, options.positions)
        print(f"{path.name}, {sum(map(len, texts))} positions", flush=True)
        print(divergence_table(divergence(texts, reference, engines)), flush=True)
        answers = greedy_answers(cpu, model, options.answers)
        print(departure_table(departures(answers, reference, engines), answers))


if __name__ == "__main__":
    main()
