"""Makes the golden files of `tests/golden/data/peer`: tiny random models, and llama.cpp's logits for them.

Run from the repository root: `python scripts/make_peer_goldens.py [NAME …]`. Needs gguf and llama-cpp-python; the tests
need neither. For families that transformers lacks. Weights, keys and values are float32, so that llama.cpp's arithmetic
differs from ours by rounding alone.

Those of which other goldens lack an op lie in `tests/golden/data` itself.

For each file NAME.gguf there is NAME.npz with tokens int32[T], n_context, columns int32[C], logits float32[T, C] and
last float32[V], as in `make_goldens.py`, and judge. Embedding models lie in `embedding/peer`; in place of logits they
have embedding float32[D], the mean of the hidden rows, of length 1; rerankers score float32[1].
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from goldens.cases import N_TOKENS, VOCABULARY
from goldens.encoder_peers import ENCODERS
from goldens.given_names import check_names
from goldens.peer_cases import PEERS, Peer, Value
from goldens.peer_mixtures import PEER_MIXTURES
from goldens.peer_rarer import RARER
from goldens.small_tokenizers import add_tokenizer
from numpy.typing import NDArray

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data"
CONTEXT, COLUMN_STEP = 256, 8
EPSILON = 1e-5


def write(peer: Peer, path: Path, seed: int) -> None:
    """Write a model with random weights."""
    writer = gguf.GGUFWriter(path, peer.architecture)
    writer.add_type("model")
    writer.add_name(peer.name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(peer.width)
    writer.add_block_count(len(peer.layers))
    for add, values in (
        (writer.add_head_count, peer.heads),
        (writer.add_head_count_kv, peer.kv_heads),
        (writer.add_feed_forward_length, peer.ffn),
    ):
        add(values if isinstance(values, int) else list(values))  # type: ignore[operator]
    writer.add_float32(f"{peer.architecture}.attention.{peer.epsilon}", EPSILON)
    for key, value in peer.keys.items():
        _add(writer, key if key.startswith("xielu.") else f"{peer.architecture}.{key}", value)
    add_tokenizer(writer)
    if peer.embeds:
        writer.add_token_type_count(2)
    ends = ("token_embd.weight",) if peer.tied or peer.embeds else ("token_embd.weight", "output.weight")
    shapes = dict.fromkeys(ends, (VOCABULARY, peer.width)) | peer.beside
    if not peer.embeds:
        shapes["output_norm.weight"] = (peer.width,)
    for number, layer in enumerate(peer.layers):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    random = np.random.default_rng(seed)
    for name, shape in shapes.items():
        writer.add_tensor(name, _values(name, random.standard_normal(shape).astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _values(name: str, noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """Norms and factors around 1, biases around 0, matrices by which every layer matters; states that decay."""
    if name.endswith("ssm_a"):
        found = -np.exp(0.5 * noise - 2.0)  # states that remember some tokens
    elif noise.ndim == 1 or "_norm." in name:
        found = 0.5 * noise if name.endswith("bias") else np.abs(1.0 + 0.3 * noise)
    else:
        gain = 2.0 if name in ("token_embd.weight", "output.weight") else 1.5 if ".attn_" in name else 1.0
        found = noise * gain / noise.shape[-1] ** 0.5
    values: NDArray[np.float32] = found.astype(np.float32)
    return values


def judged(path: Path, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """llama.cpp's logits float32[T, V]."""
    float32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=CONTEXT, n_threads=1, logits_all=True, verbose=False, type_k=float32, type_v=float32
    )
    model.eval(tokens.tolist())
    logits = np.array(model.scores[: len(tokens)], np.float32)
    model.close()
    return logits


def pooled(path: Path, tokens: NDArray[np.int32], width: int, pooling: int) -> NDArray[np.float32]:
    """What llama.cpp makes of a text by a kind of pooling: float32[D]."""
    model = llama_cpp.Llama(
        str(path),
        embedding=True,
        verbose=False,
        n_ctx=CONTEXT,
        n_batch=CONTEXT,
        n_ubatch=CONTEXT,
        n_threads=1,
        flash_attn=False,
        pooling_type=pooling,
    )
    model._batch.set_batch(batch=tokens.tolist(), n_past=0, logits_all=True)
    model._ctx.decode(model._batch)
    found = np.array(llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)[:width], np.float32)
    model.close()
    return found


def make_encoder(peer: Peer, seed: int) -> None:
    """Write an embedding model and llama.cpp's embedding of some tokens."""
    path = DATA / "embedding" / "peer" / f"{peer.name}.gguf"
    path.parent.mkdir(exist_ok=True)
    write(peer, path, seed)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, N_TOKENS).astype(np.int32)
    if "cls.weight" in peer.beside:
        found = pooled(path, tokens, 1, llama_cpp.LLAMA_POOLING_TYPE_RANK)
        held = {"score": 1.0 / (1.0 + np.exp(-found))}
    else:
        found = pooled(path, tokens, peer.width, llama_cpp.LLAMA_POOLING_TYPE_MEAN)
        held = {"embedding": found / np.linalg.norm(found)}
    np.savez(path.with_suffix(".npz"), tokens=tokens, **held)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)


def main(chosen: list[str]) -> int:
    (DATA / "peer").mkdir(parents=True, exist_ok=True)
    check_names(chosen, [peer.name for peer in (*PEERS, *PEER_MIXTURES, *RARER, *ENCODERS)])
    for number, peer in enumerate(PEERS + PEER_MIXTURES + RARER):
        if chosen and peer.name not in chosen:
            continue
        path = DATA / (f"{peer.name}-f32.gguf" if peer.whole else f"peer/{peer.name}.gguf")
        write(peer, path, 3000 + number)
        tokens = np.random.default_rng(number).integers(0, VOCABULARY, N_TOKENS).astype(np.int32)
        logits = judged(path, tokens)
        spread = float(logits.std())
        if not 0.5 < spread < 20.0:
            raise RuntimeError(f"{peer.name}: logits spread by {spread:.2f}: the weights are badly scaled")
        columns = np.arange(0, VOCABULARY, COLUMN_STEP, dtype=np.int32)
        held = {"columns": columns, "logits": logits[:, columns], "last": logits[-1], "judge": np.array("llama.cpp")}
        np.savez(path.with_suffix(".npz"), tokens=tokens, n_context=np.int32(CONTEXT), **held)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, logits spread {spread:.2f}", flush=True)
    for number, peer in enumerate(ENCODERS):
        if not chosen or peer.name in chosen:
            make_encoder(peer, 4000 + number)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
