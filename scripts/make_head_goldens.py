"""Makes the golden files of `tests/golden/data/heads`: what llama.cpp computes for trained heads with random weights.

Run from the repository root: `PYTHONPATH=. python scripts/make_head_goldens.py`. Needs gguf and llama-cpp-python; the
tests need gguf alone, with which they write the same models again (`tests.head_files`). Keys and values are float32.

For each model there is NAME.npz: tokens int32[T]; logits float32[T - 1, V] of the head after each token but the first,
with the model's hidden rows; then `next` tokens int32[N], and their logits float32[N, V] with the head's own rows.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from tests.head_files import ASSISTANTS, CHAINS, EAGLES, HEADS, N_BLOCKS, write_assistant, write_eagle, write_with_head

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data"
N_TOKENS, N_NEXT, CONTEXT = 40, 5, 256
ENCODE, DECODE = 0, 1
Floats = NDArray[np.float32]
library = llama_cpp.llama_cpp._lib
own_rows = library["_Z26llama_get_embeddings_nextnP13llama_context"]
own_rows.restype, own_rows.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]
want_own_rows = library["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
want_own_rows.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]


choose_block = library["_Z28llama_set_nextn_layer_offsetP13llama_contexti"]
choose_block.argtypes = [ctypes.c_void_p, ctypes.c_int32]


class Embedding(ctypes.Structure):
    """struct llama_embd."""

    _fields_ = (("data", ctypes.POINTER(ctypes.c_float)), ("n_rows", ctypes.c_size_t), ("n_embd", ctypes.c_size_t))


set_state = library["llama_batch_ext_set_embd_token"]
set_state.restype, set_state.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int32, Embedding]
add_embedding = library["llama_batch_ext_add_embd"]
add_embedding.restype, add_embedding.argtypes = ctypes.c_int32, [ctypes.c_void_p, ctypes.c_int32, Embedding]


def context_of(model: int, kind: int, other: int | None = None) -> int:
    """A context whose logits are all kept."""
    wanted = llama_cpp.llama_context_default_params()
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = CONTEXT
    wanted.n_outputs_max = wanted.n_outputs_max_per_seq = CONTEXT
    wanted.n_threads = wanted.n_threads_batch = 1
    wanted.type_k = wanted.type_v = llama_cpp.GGML_TYPE_F32
    wanted.flash_attn_type = 0
    wanted.ctx_type, wanted.ctx_other = kind, other
    made = llama_cpp.llama_init_from_model(model, wanted)
    assert made
    return made


def evaluate(context: int, tokens: list[int], first: int, rows: Floats | None, n_vocab: int) -> Floats:
    """The logits of tokens from a position on, each with its hidden row, if there are any."""
    batch = llama_cpp.llama_batch_ext_init(context)
    for number, token in enumerate(tokens):
        place = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
        position = (ctypes.c_int32 * 1)(first + number)
        assert llama_cpp.llama_batch_ext_set_pos(batch, place, position)
        assert llama_cpp.llama_batch_ext_set_output_logits(batch, place, True)
        if rows is not None:
            row = np.ascontiguousarray(rows[number])
            data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            assert set_state(batch, place, Embedding(data, 1, len(row)))
    assert llama_cpp.llama_process(context, DECODE, batch) == 0
    llama_cpp.llama_batch_ext_free(batch)
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(tokens), n_vocab)).copy()


def head_after(path: Path, seed: int) -> tuple[int, list[int], NDArray[np.float32], int]:
    """A file's head, random tokens, the model's rows of them, float32[T, D], and the size of the vocabulary."""
    wanted = llama_cpp.llama_model_default_params()
    wanted.load_mtp = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), wanted)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    width = llama_cpp.llama_model_n_embd(model)
    tokens = np.random.default_rng(seed).integers(0, n_vocab, N_TOKENS).tolist()
    trunk = context_of(model, llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT)
    want_own_rows(trunk, True, False)
    evaluate(trunk, tokens, 0, None, n_vocab)
    rows = np.ctypeslib.as_array(own_rows(trunk), (N_TOKENS, width)).copy()
    head = context_of(model, llama_cpp.LLAMA_CONTEXT_TYPE_MTP, trunk)
    want_own_rows(head, True, True)
    return head, tokens, rows, n_vocab


def golden(path: Path, seed: int) -> dict[str, NDArray[np.generic]]:
    """What the head of a file gives for random tokens."""
    head, tokens, rows, n_vocab = head_after(path, seed)
    width = rows.shape[1]
    logits = evaluate(head, tokens[1:], 1, rows[:-1], n_vocab)
    last, following, found = logits[-1], [], []
    row = np.ctypeslib.as_array(own_rows(head), (N_TOKENS - 1, width))[-1:].copy()
    for number in range(N_NEXT):
        following.append(int(last.argmax()))
        last = evaluate(head, following[-1:], N_TOKENS + number, row, n_vocab)[0]
        row = np.ctypeslib.as_array(own_rows(head), (1, width)).copy()
        found.append(last)
    given = {"tokens": np.array(tokens, np.int32), "logits": logits, "next": np.array(following, np.int32)}
    return {**given, "next_logits": np.array(found)}


def chain_golden(path: Path, seed: int) -> dict[str, NDArray[np.generic]]:
    """What each of several blocks gives for random tokens, with the rows of the one before: float32[blocks, T, V].

    The n-th block begins at the n-th token.
    """
    head, tokens, rows, n_vocab = head_after(path, seed)
    width = rows.shape[1]
    found = np.zeros((N_BLOCKS, N_TOKENS, n_vocab), np.float32)
    for block in range(N_BLOCKS):
        choose_block(head, block)
        cut(head, 0)
        found[block, block + 1 :] = evaluate(head, tokens[block + 1 :], block + 1, rows[:-1], n_vocab)
        rows = np.ctypeslib.as_array(own_rows(head), (N_TOKENS - block - 1, width)).copy()
    return {"tokens": np.array(tokens, np.int32), "logits": found}


def eagle_golden(path: Path, seed: int) -> dict[str, NDArray[np.generic]]:
    """What an EAGLE-3 head gives for random tokens and random rows of a model."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    width, rng = llama_cpp.llama_model_n_embd(model), np.random.default_rng(seed)
    tokens, rows = rng.integers(0, n_vocab, N_TOKENS).tolist(), rng.standard_normal((N_TOKENS, 3 * 32))
    head = context_of(model, llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT)
    want_own_rows(head, True, False)
    batch = llama_cpp.llama_batch_ext_init(head)
    for number, row in enumerate(rows.astype(np.float32)):
        add_row(batch, number, row)
    assert llama_cpp.llama_process(head, ENCODE, batch) == 0
    fused = np.ctypeslib.as_array(own_rows(head), (N_TOKENS, width)).copy()
    logits = evaluate(head, tokens, 0, fused, n_vocab)
    row = np.ctypeslib.as_array(own_rows(head), (N_TOKENS, width))[-1:].copy()
    following, found = [], []
    for number in range(N_NEXT):
        following.append(int(rng.integers(0, n_vocab)))
        found.append(evaluate(head, following[-1:], N_TOKENS + number, row, n_vocab)[0])
        row = np.ctypeslib.as_array(own_rows(head), (1, width)).copy()
    given = {"tokens": np.array(tokens, np.int32), "rows": rows.astype(np.float32), "logits": logits}
    return {**given, "next": np.array(following, np.int32), "next_logits": np.array(found)}


def assistant_golden(model_path: Path, path: Path, seed: int) -> dict[str, NDArray[np.generic]]:
    """What an assistant gives after each of random tokens, with the model's row; then what it goes on with alone."""
    files = [
        llama_cpp.llama_model_load_from_file(str(each).encode(), llama_cpp.llama_model_default_params())
        for each in (model_path, path)
    ]
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(files[0]))
    width = llama_cpp.llama_model_n_embd(files[0])
    tokens = np.random.default_rng(seed).integers(0, n_vocab, N_TOKENS).tolist()
    trunk = context_of(files[0], llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT)
    want_own_rows(trunk, True, False)
    head = context_of(files[1], llama_cpp.LLAMA_CONTEXT_TYPE_MTP, trunk)
    want_own_rows(head, True, True)
    found = []
    for number, (token, following) in enumerate(pairwise(tokens)):
        cut(trunk, number)
        evaluate(trunk, [token], number, None, n_vocab)
        row = np.ctypeslib.as_array(own_rows(trunk), (1, width)).copy()
        found.append(evaluate(head, [following], number + 1, row, n_vocab)[0])
    chosen, later = [], [found[-1]]
    for _ in range(N_NEXT):
        row = np.ctypeslib.as_array(own_rows(head), (1, width)).copy()
        chosen.append(int(later[-1].argmax()))
        cut(trunk, N_TOKENS - 1)
        later.append(evaluate(head, chosen[-1:], N_TOKENS - 1, row, n_vocab)[0])
    given = {"tokens": np.array(tokens, np.int32), "logits": np.array(found), "next": np.array(chosen, np.int32)}
    return {**given, "next_logits": np.array(later[1:])}


def cut(context: int, n_tokens: int) -> None:
    """Drop what is cached beyond some tokens."""
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, n_tokens, -1)


def add_row(batch: int, number: int, row: Floats) -> None:
    """Add a token that is a row of numbers."""
    data = np.ascontiguousarray(row).ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert add_embedding(batch, 0, Embedding(data, 1, len(row))) == number
    assert llama_cpp.llama_batch_ext_set_pos(batch, number, (ctypes.c_int32 * 1)(number))
    assert llama_cpp.llama_batch_ext_set_output_logits(batch, number, True)


def main(names: list[str]) -> None:
    """Make the golden files with these names, or all."""
    (DATA / "heads").mkdir(exist_ok=True)
    for seed, (name, (source, own_output)) in enumerate(HEADS.items()):
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = write_with_head(DATA / source, Path(folder) / "model.gguf", seed=seed, own_output=own_output)
                np.savez_compressed(DATA / "heads" / f"{name}.npz", **golden(path, seed))  # type: ignore[arg-type]
            print(name)
    for name, source in CHAINS.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = write_with_head(DATA / source, Path(folder) / "model.gguf", n_blocks=N_BLOCKS)
                np.savez_compressed(DATA / "heads" / f"{name}.npz", **chain_golden(path, 0))  # type: ignore[arg-type]
            print(name)
    for name, (source, seed) in ASSISTANTS.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = write_assistant(DATA / source, Path(folder) / "head.gguf", seed=seed)
                made = assistant_golden(DATA / source, path, seed)
                np.savez_compressed(DATA / "heads" / f"{name}.npz", **made)  # type: ignore[arg-type]
            print(name)
    for seed, (name, flags) in enumerate(EAGLES.items()):
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = write_eagle(Path(folder) / "head.gguf", seed=seed, **flags)
                np.savez_compressed(DATA / "heads" / f"{name}.npz", **eagle_golden(path, seed))  # type: ignore[arg-type]
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
