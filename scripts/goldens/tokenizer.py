"""A byte-level tokenizer small enough for a tiny model: every byte, six control tokens, two merges.

In: a GGUF writer. Out: the tokenizer's metadata in it. It can tokenize any text and convert any ids to bytes.
"""

from __future__ import annotations

import gguf

MERGES = (("h", "e"), ("Ġ", "t"))
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that represents each byte in GPT-2's vocabulary, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Add 264 tokens: 256 bytes, the control tokens, one token per merge."""
    tokens = [*byte_alphabet(), *CONTROL, *("".join(merge) for merge in MERGES)]
    kinds = [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
