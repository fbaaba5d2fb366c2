"""Makes the golden files of `tests/golden/data/converted`: llama.cpp's conversions, and transformers' results.

Run from the repository root: `python scripts/make_converted_goldens.py --llama-cpp FOLDER [--all FOLDER] [FAMILY …]`,
where FOLDER holds llama.cpp's sources (llama-cpp-python's source distribution has them in vendor/llama.cpp). Needs
torch, transformers, sentencepiece and what the converter needs. For each family a tiny random checkpoint is written as
its publishers write it, in bfloat16; both transformers and the converter read it. The converter skips one thing only:
identifying the tokenizer by its hash, since it knows only published ones. It is given the tokenizer's name instead.

For each file NAME-FORM.gguf there is NAME.npz with tokens int32[T] and n_context; texts with the ids and the counts of
their tokens by the checkpoint's tokenizer. Generating models also have columns int32[C], logits float32[T, C], last
float32[V], as in `make_goldens.py`; embedding models have embedding float32[D], of length 1; rerankers have score
float32[1]. `--all FOLDER` writes every form to that folder instead, with all logits, for `measure_converted.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from goldens import extras
from goldens.encoder_cases import BERT_CONTEXT
from goldens.llama_cpp import Converter
from goldens.published import PUBLISHED, Published
from goldens.small_tokenizers import Encode
from goldens.weights import randomise
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import Mxfp4Config

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "converted"
FORMS = ("f32", "bf16", "q8_0")
KEPT = "bf16"
"""Exactly the checkpoints' numbers, in half the space."""
COLUMN_STEP = 16
TEXTS = ("the cat sat on the mat", "Hello, 123 moons!\n\n  it's   a dog", "naïve 東京 😀")
QUERY, DOCUMENT, SEPARATOR = "the cat", "a dog sat on the moon", 2
QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def write_checkpoint(family: Published, folder: Path, seed: int) -> Encode:
    """Write a random checkpoint with its tokenizer; returns the tokenizer's encode function."""
    config = family.config()
    config.dtype = torch.bfloat16
    kind = getattr(transformers, family.model)
    make = kind.from_config if family.model.startswith("Auto") else kind._from_config
    model = make(config, attn_implementation="eager", dtype=torch.float32)
    randomise(model, seed, 0.0)
    by_itself = extras.columns_first not in family.beside
    model.to(torch.bfloat16).save_pretrained(folder, save_original_format=by_itself)
    encode = family.tokenizer.write(folder)
    random = np.random.default_rng(seed)
    for extra in family.beside:
        extra(folder, random)
    return encode


def tokenized(encode: Encode) -> dict[str, object]:
    """A tokenizer's tokens for some texts."""
    ids = [encode(text) for text in TEXTS]
    joined = np.concatenate(ids).astype(np.int32)
    return {"texts": np.array(TEXTS), "ids": joined, "counts": [len(each) for each in ids]}


def judged(family: Published, folder: Path, encode: Encode, seed: int, *, whole: bool) -> dict[str, object]:
    """transformers' results for some tokens, from the checkpoint itself."""
    kind = getattr(transformers, family.model)
    unpacked = {"quantization_config": Mxfp4Config(dequantize=True)} if extras.pack_experts in family.beside else {}
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **unpacked).float().eval()
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = np.random.default_rng(seed).integers(4, vocabulary - 60, family.n_tokens).astype(np.int32)
    given = torch.from_numpy(tokens).long()[None]
    found: dict[str, object] = {
        "tokens": tokens,
        "n_context": np.int32(max(BERT_CONTEXT, family.n_tokens) if family.pooling else 256),
    }
    with torch.no_grad():
        if family.ranks:
            return _ranked(model, encode, between=[SEPARATOR] if "XLM" in family.model else [])
        if family.pooling is not None:
            return found | {"embedding": _pooled(family.pooling, model(given).last_hidden_state[0], folder)}
        logits = model(input_ids=given, use_cache=False).logits[0].float().numpy()
    spread = float(logits.std())
    if not 0.5 < spread < 20.0:
        raise RuntimeError(f"{family.name}: logits spread by {spread:.2f}: the weights are badly scaled")
    columns = np.arange(0, vocabulary, COLUMN_STEP, dtype=np.int32)
    found |= {"columns": columns, "logits": logits[:, columns], "last": logits[-1]}
    return found | ({"every": logits} if whole else {})


def _pooled(pooling: str, hidden: torch.Tensor, folder: Path) -> NDArray[np.float32]:
    """An embedding as sentence-transformers computes it."""
    row = hidden[0] if pooling == "cls" else hidden.mean(dim=0)
    for dense in sorted(folder.glob("*_Dense")):
        row = load_file(dense / "model.safetensors")["linear.weight"].float() @ row
    found: NDArray[np.float32] = (row / row.norm()).numpy()
    return found


def _ranked(model: Any, encode: Encode, between: list[int]) -> dict[str, object]:
    """The score of a document for a query, formatted as in the families' model cards."""
    head = getattr(model, "lm_head", None)
    if head is not None:
        tokens = encode(QWEN3_RERANKER.format(query=QUERY, document=DOCUMENT))
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        score = logits[[encode(word)[0] for word in ("yes", "no")]].softmax(dim=0)[0]
    else:
        tokens = [*encode(QUERY), *between, *encode(DOCUMENT)[1:]]
        score = model(input_ids=torch.tensor([tokens])).logits[0, 0].sigmoid()
    found = {"query": np.array(QUERY), "document": np.array(DOCUMENT), "score": np.float32(score)}
    return {"tokens": np.array(tokens, np.int32), "n_context": np.int32(1024 if head is not None else 96), **found}


def make(family: Published, target: Path, converter: Converter, seed: int, *, whole: bool) -> None:
    """Write a family's files and transformers' results; `whole`: in every form, with all logits."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / family.name
        folder.mkdir()
        encode = write_checkpoint(family, folder, seed)
        results = judged(family, folder, encode, seed, whole=whole)
        np.savez(target / f"{family.name}.npz", **tokenized(encode), **results)
        for form in FORMS if whole else (KEPT,):
            out = target / f"{family.name}-{form}.gguf"
            converter.convert(folder, out, form, family.tokenizer.pre, family.options)
            print(f"{out.name}: {out.stat().st_size / 1024:.0f} KiB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama.cpp's sources")
    parser.add_argument("--all", type=Path, help="folder for every form, with all logits")
    parser.add_argument("families", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    target = given.all or DATA
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, Converter(given.llama_cpp, Path(temporary) / "log") as converter:
        for number, family in enumerate(PUBLISHED):
            if family.name in (given.families or [family.name]) and (given.all or family.kept):
                make(family, target, converter, 1000 + number, whole=given.all is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
