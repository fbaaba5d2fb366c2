"""Trains a tiny model and its head that guesses the token after the next, and writes both to a GGUF file.

Run: `python scripts/train_head.py FILE --text questions.jsonl [--minutes N]`. Needs torch, tokenizers and gguf. The
model is a Qwen 3.5 all of whose layers have attention (arXiv 2505.09388 for their norms, 2505.06708 for their gates);
its vocabulary is made from the same text. It is trained first; then the head is, to give what the model gives
(DeepSeek-V3, arXiv 2412.19437), also from its own rows a few tokens on (EAGLE-3, arXiv 2503.01840). For measurements of
drafting: real heads are too large for a machine of two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, FFN = 512, 64, 4, 2, 1, 32, 192
CONTEXT, BATCH, LENGTH, BASE, EPSILON = 1024, 12, 128, 10000.0, 1e-6
DEPTH = 3
"""Tokens that the head guesses one after another while it is trained."""


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, EPSILON)


class Block(nn.Module):
    """A layer: gated attention with normed heads, and a gated feed-forward network. Names are GGUF's."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.post_attention_norm = Norm(WIDTH), Norm(WIDTH)
        self.attn_q = nn.Linear(WIDTH, 2 * HEADS * HEAD_WIDTH, bias=False)
        self.attn_k = nn.Linear(WIDTH, KV_HEADS * HEAD_WIDTH, bias=False)
        self.attn_v = nn.Linear(WIDTH, KV_HEADS * HEAD_WIDTH, bias=False)
        self.attn_output = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)
        self.attn_q_norm, self.attn_k_norm = Norm(HEAD_WIDTH), Norm(HEAD_WIDTH)
        self.ffn_gate, self.ffn_up = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
        self.ffn_down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attn_norm(x))
        normed = self.post_attention_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def attention(self, x: Tensor) -> Tensor:
        """Causal attention of rows that are already normed."""
        n_batch, length, _ = x.shape
        query, gate = self.attn_q(x).view(n_batch, length, HEADS, 2 * HEAD_WIDTH).chunk(2, dim=-1)
        key = self.attn_k(x).view(n_batch, length, KV_HEADS, HEAD_WIDTH)
        value = self.attn_v(x).view(n_batch, length, KV_HEADS, HEAD_WIDTH)
        query, key = rotated(self.attn_q_norm(query)), rotated(self.attn_k_norm(key))
        heads = (part.transpose(1, 2) for part in (query, key, value))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)
        return self.attn_output((attended * gate.sigmoid()).reshape(n_batch, length, -1))


def rotated(x: Tensor) -> Tensor:
    """Rotary embedding of float[B, T, heads, width], halves of a head being pairs."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]), BASE ** (-torch.arange(half) / half))[:, None]
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Trunk(nn.Module):
    """The model; its output product is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.output_norm = Norm(WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and normed hidden rows."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        hidden = self.output_norm(x)
        return hidden @ self.embed.weight.T, hidden


class Head(nn.Module):
    """The head: a block after a projection of what is known. Uses the model's embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.shared_head_norm = Norm(WIDTH), Norm(WIDTH), Norm(WIDTH)
        self.eh_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.block = Block()

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Its own hidden rows, of which the embedding makes logits."""
        joined = torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1)
        return self.shared_head_norm(self.block(self.eh_proj(joined)))


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens to train with."""

    tokens: Tensor

    def batch(self) -> Tensor:
        """Random parts of it: int64[BATCH, LENGTH + 1]."""
        starts = torch.randint(len(self.tokens) - LENGTH - 1, (BATCH,)).tolist()
        return torch.stack([self.tokens[start : start + LENGTH + 1] for start in starts])


def train(model: nn.Module, loss_of_batch: object, seconds: float, rate: float) -> None:
    """Minimise a loss for some time of the processor; the rate of learning falls to zero."""
    assert callable(loss_of_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05, betas=(0.9, 0.95))
    began, steps, shown = time.process_time(), 0, 0.0
    while (share := (time.process_time() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (steps + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * share))
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps, shown = steps + 1, loss.item() if not steps else 0.98 * shown + 0.02 * loss.item()
    print(f"{type(model).__name__}: {steps} steps, loss {shown:.3f}", flush=True)


def train_trunk(trunk: Trunk, text: Text, seconds: float) -> None:
    """Train the model to give the next token."""

    def loss() -> Tensor:
        tokens = text.batch()
        return functional.cross_entropy(trunk(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten())

    train(trunk, loss, seconds, 3e-3)


def train_head(trunk: Trunk, head: Head, text: Text, seconds: float) -> None:
    """Train the head to give what the model gives, up to DEPTH tokens beyond what the model has evaluated."""

    def loss() -> Tensor:
        tokens = text.batch()[:, :-1]
        with torch.no_grad():
            logits, rows = trunk(tokens)
            embedded, wanted = trunk.embed(tokens), logits.softmax(dim=-1)
        total = torch.zeros(())
        for depth in range(1, DEPTH + 1):
            rows = head(embedded[:, depth:], rows[:, :-1])  # row n is of the tokens up to n + depth
            guessed = (rows @ trunk.embed.weight.T.detach()).log_softmax(dim=-1)
            total = total - (wanted[:, depth:] * guessed).sum(dim=-1).mean() * 0.8**depth
        return total

    train(head, loss, seconds, 3e-3)


def tokenizer_of(text: str) -> Tokenizer:
    """A byte-level tokenizer for a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text], trainer)
    return made


def write(path: Path, trunk: Trunk, head: Head, tokenizer: Tokenizer) -> None:
    """Write model, head and tokenizer."""
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_full_attention_interval(1)
    for add, number in (  # of layers that this model has none of
        (writer.add_ssm_conv_kernel, 4),
        (writer.add_ssm_group_count, 1),
        (writer.add_ssm_time_step_rank, 1),
        (writer.add_ssm_state_size, HEAD_WIDTH),
        (writer.add_ssm_inner_size, HEAD_WIDTH),
    ):
        add(number)
    add_tokenizer(writer, tokenizer)
    tensors = {"token_embd.weight": trunk.embed.weight, "output_norm.weight": trunk.output_norm.weight}
    for number, block in enumerate([*trunk.blocks, head.block]):
        tensors |= {f"blk.{number}.{name}": value for name, value in block.named_parameters()}
    for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm"):
        tensors[f"blk.{LAYERS}.nextn.{name}.weight"] = getattr(head, name).weight
    for name, value in tensors.items():
        writer.add_tensor(name, value.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add a tokenizer of the kind that `tokenizer_of` makes."""
    held = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(held["vocab"], key=held["vocab"].__getitem__)
    tokens += [f"<unused {number}>" for number in range(len(tokens), VOCABULARY)]
    kinds = [gguf.TokenType.CONTROL if token == END else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in held["merges"]])
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(False)


def main() -> None:
    """Read the arguments, train, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="a file of lines of JSON with turns: Spec-Bench's")
    parser.add_argument("--minutes", type=float, default=6.0, help="of the processor, a third of them for the head")
    asked = parser.parse_args()
    torch.manual_seed(0)
    turns = [turn for line in asked.text.read_text().splitlines() for turn in json.loads(line)["turns"]]
    tokenizer = tokenizer_of("\n\n".join(turns))
    ids = [token for turn in turns for token in [*tokenizer.encode(turn).ids, tokenizer.token_to_id(END)]]
    text, trunk, head = Text(torch.tensor(ids)), Trunk(), Head()
    n_weights = (
        sum(weight.numel() for weight in trunk.parameters()),
        sum(weight.numel() for weight in head.parameters()),
    )
    print(f"{len(ids)} tokens; {n_weights[0]} weights and {n_weights[1]} of the head", flush=True)
    train_trunk(trunk, text, 40 * asked.minutes)
    trunk.requires_grad_(False)
    train_head(trunk, head, text, 20 * asked.minutes)
    write(asked.file, trunk, head, tokenizer)


if __name__ == "__main__":
    main()
