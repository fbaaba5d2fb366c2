"""Measures embedded texts per second: edgeinfer, llama-cpp-python and, with --onnx, ONNX Runtime, alternating.

Run: `python scripts/measure_embeddings.py MODEL.gguf [--tokens 16,128] [--texts 64] [--rounds 5] [--onnx FILE.onnx]`.
Texts are random token ids of the given length, the same for all engines. Each round embeds all texts with every engine,
in a different order each time; medians and ratios of the rounds are shown. llama.cpp gets as many texts per pass as its
context holds; ONNX Runtime gets 32 at a time. FILE.onnx is what `--export FILE.onnx` writes with transformers and
torch: a BERT of the model's shape with random weights in float32, as speed does not depend on them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

Texts = list[list[int]]
Embed = Callable[[Texts], object]
ONNX_BATCH = 32
LEAST_ID = 1000
"""Lower ids may be special tokens in BERT's vocabularies."""


def own(path: Path) -> Embed:
    """Embeds with edgeinfer."""
    from edgeinfer.engine.loading import load

    return load(path, device="cpu").embed


def llama_cpp(path: Path, n_context: int, n_threads: int) -> Embed:
    """Embeds with llama.cpp; the same ids, without a tokenizer."""
    import llama_cpp

    library = llama_cpp.llama_cpp
    model = llama_cpp.Llama(
        *(str(path),),
        **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), n_context),
        embedding=True,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        verbose=False,
    )
    width = model.n_embd()

    def run(texts: Texts) -> list[object]:
        batch, found = library.llama_batch_init(n_context, 0, n_context), []
        for group in groups(texts, n_context):
            model._ctx.kv_cache_clear()
            batch.n_tokens = 0
            for number, tokens in enumerate(group):
                for position, token in enumerate(tokens):
                    place = batch.n_tokens
                    batch.token[place], batch.pos[place], batch.logits[place] = token, position, True
                    batch.n_seq_id[place], batch.seq_id[place][0] = 1, number
                    batch.n_tokens += 1
            if library.llama_decode(model.ctx, batch):
                raise RuntimeError("llama.cpp cannot read these texts")
            for number in range(len(group)):
                row = library.llama_get_embeddings_seq(model.ctx, number)
                found.append(np.ctypeslib.as_array(row, (width,)).copy())
        library.llama_batch_free(batch)
        return found

    return run


def groups(texts: Texts, most: int) -> list[Texts]:
    """Embed texts, as many at a time as fit in a context."""
    found: list[Texts] = []
    for tokens in texts:
        if not found or sum(map(len, found[-1])) + len(tokens) > most:
            found.append([])
        found[-1].append(tokens)
    return found


def onnx_runtime(path: Path, n_threads: int) -> Embed:
    """Embeds with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(texts: Texts) -> list[object]:
        found = []
        for start in range(0, len(texts), ONNX_BATCH):
            ids = np.array(texts[start : start + ONNX_BATCH], np.int64)
            found.append(session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)}))
        return found

    return run


def export(model: Path, out: Path) -> None:
    """Write a BERT of this shape as transformers defines it."""
    import torch
    from gguf import GGUFReader
    from transformers import BertConfig, BertModel

    reader = GGUFReader(model)

    def size(name: str) -> int:
        return int(reader.fields[f"bert.{name}"].contents())

    config = BertConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=size("embedding_length"),
        intermediate_size=size("feed_forward_length"),
        num_attention_heads=size("attention.head_count"),
        num_hidden_layers=size("block_count"),
        max_position_embeddings=size("context_length"),
    )
    network = BertModel(config, add_pooling_layer=False).eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.network(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones((2, 16), dtype=torch.long)
    axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "hidden")}
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden"]}
    torch.onnx.export(Hidden(), (ids, torch.ones_like(ids)), str(out), dynamic_axes=axes, dynamo=False, **names)


def measure(ways: dict[str, Embed], texts: Texts, rounds: int) -> dict[str, list[float]]:
    """Texts per second of each engine and round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    for embed in ways.values():
        embed(texts[:2])
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            began = time.perf_counter()
            ways[name](texts)
            rates[name].append(len(texts) / (time.perf_counter() - began))
    return rates


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", default="16,128", help="of each text, one or more lengths")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the others")
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--export", type=Path, help="write this file and end")
    options = parser.parse_args(arguments)
    if options.export:
        export(options.model, options.export)
        return 0
    import psutil

    from edgeinfer.models.load import open_model

    with open_model(options.model) as model:
        n_context, n_ids = model.spec.n_context_trained, model.spec.n_vocab
    ways = {
        "edgeinfer": own(options.model),
        "llama.cpp": llama_cpp(options.model, n_context, options.threads),
    }
    if options.onnx:
        ways["ONNX Runtime"] = onnx_runtime(options.onnx, options.threads)
    draw = np.random.default_rng(0)
    for length in map(int, options.tokens.split(",")):
        texts = draw.integers(LEAST_ID, n_ids, (options.texts, length)).tolist()
        before = psutil.cpu_times_percent(1.0).idle
        rates = measure(ways, texts, options.rounds)
        print(f"{length} tokens a text, idle before {before:.0f} %, after {psutil.cpu_times_percent(1.0).idle:.0f} %")
        for name, found in rates.items():
            ratios = [mine / other for mine, other in zip(rates["edgeinfer"], found, strict=True)]
            middle = statistics.median(ratios)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"  {name:13} {statistics.median(found):8.1f} texts/s   edgeinfer {middle:.2f}x ({spread})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
