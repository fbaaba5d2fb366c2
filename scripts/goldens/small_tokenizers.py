"""Tokenizers small enough for tiny models: a byte-level one for GGUF files, and those of the kinds families publish.

In: a GGUF writer, or a folder. Out: metadata of a tokenizer of every byte, six control tokens and two merges, which
reads any text and turns any ids into bytes; or the tokenizer files of a published checkpoint, and a function that
encodes a text with the library they are made for (tokenizers or sentencepiece). All have at most VOCABULARY tokens.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

MERGES = (("h", "e"), ("Ġ", "t"))
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 320
Encode = Callable[[str], list[int]]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
AFMOE_FIRST = (
    r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))",
    r"\p{N}{1,3}",
    "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
)
AFMOE = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = ("the cat sat on the mat and the dog sat on the moon", "a cat and a dog", "the quick brown fox", "12 345 6789")
WORDS = ("the", "cat", "sat", "on", "a", "dog", "moon", "##s", "##ing", "hello")


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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tokenizer: `write` writes its files; `pre` is llama.cpp's name for its pre-tokenizer.

    The name is given because llama.cpp's converter recognises published tokenizers only.
    """

    write: Callable[[Path], Encode]
    pre: str = "default"


def byte_level(
    pattern: str,
    pre: str,
    begin: str | None = None,
    first: tuple[str, ...] = (),
    marks: tuple[str, ...] = (),
    end: str = "",
) -> Kind:
    """Byte-level BPE within pieces split by `pattern`, after the patterns `first`; `begin` is put before every text.

    `marks`: further special tokens. `end`: put after every text that has a beginning.
    """

    def write(folder: Path) -> Encode:
        letters = byte_alphabet()
        merges = [*MERGES, ("c", "a"), ("ca", "t"), ("Ġ", "cat"), ("1", "2"), ("n", "o"), ("y", "e"), ("ye", "s")]
        tokens = [*letters, *("".join(merge) for merge in merges)]
        core = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(each), "isolated") for each in (*first, pattern)),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *marks])
        if begin is not None:
            ids = [(token, core.token_to_id(token)) for token in (begin, end) if token]
            template = f"{begin} $A {end}".strip()
            core.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
        given = {"bos_token": begin} if begin else {}
        return _saved(core, folder, eos_token="<|im_end|>", pad_token="<|endoftext|>", **given)

    return Kind(write, pre)


def word_piece() -> Kind:
    """BERT's kind: words and their parts, between two control tokens."""

    def write(folder: Path) -> Encode:
        control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
        tokens = [*control, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
        core = Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(lowercase=True)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
        core.add_special_tokens([AddedToken(token, special=True) for token in control])
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        return _saved(core, folder, **dict(zip(names, control, strict=True)))

    return Kind(write, "jina-v2-en")


def pieces(*, prefix: bool, marks: tuple[str, ...] = ()) -> Kind:
    """SentencePiece's kind: pieces merged by score, with byte fallback; `prefix`: put a space before a text.

    `marks`: further special tokens, from id 4 on.
    """

    def write(folder: Path) -> Encode:
        ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
        own = {"add_dummy_prefix": prefix, "remove_extra_whitespaces": False, "control_symbols": list(marks)}
        held = _trained(folder / "tokenizer.model", "bpe", vocab_size=VOCABULARY, byte_fallback=True, **ids, **own)
        return lambda text: [ids["bos_id"], *(int(token) for token in held.encode(text))]

    return Kind(write)


def spaced(marks: tuple[str, ...] = ()) -> Kind:
    """Gemma 4's kind: merges of letters and of spaces written as a letter, with byte fallback.

    `marks`: further special tokens, from id 4 on.
    """

    def write(folder: Path) -> Encode:
        control = ["<pad>", "<eos>", "<bos>", "<unk>", *marks]
        merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("c", "at"), ("▁", "cat"), ("▁", "▁")]
        tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz012"]
        tokens += ["".join(merge) for merge in merges]
        tokens += [f"<unused{number}>" for number in range(VOCABULARY - len(tokens))]
        ids = {token: number for number, token in enumerate(tokens)}
        core = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        core.normalizer = normalizers.Replace(" ", "▁")
        core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
        core.add_special_tokens([AddedToken(token, special=True) for token in control])
        names = ("pad_token", "eos_token", "bos_token", "unk_token")
        return _saved(core, folder, **dict(zip(names, control, strict=False)))

    return Kind(write)


def unigram() -> Kind:
    """XLM-RoBERTa's kind: pieces by probability, ids one above SentencePiece's, between two control tokens."""

    def write(folder: Path) -> Encode:
        ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
        held = _trained(folder / "sentencepiece.bpe.model", "unigram", vocab_size=60, hard_vocab_limit=False, **ids)
        control = ["<s>", "<pad>", "</s>", "<unk>"]
        own = [(held.id_to_piece(number), held.get_score(number)) for number in range(3, held.get_piece_size())]
        core = Tokenizer(models.Unigram([*((token, 0.0) for token in control), *own], unk_id=3))
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        core.decoder = decoders.Metaspace()
        ends = [("<s>", 0), ("</s>", 2)]
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
        )
        core.add_special_tokens([AddedToken(token, special=True) for token in control])
        names = ("bos_token", "pad_token", "eos_token", "unk_token", "cls_token", "sep_token")
        return _saved(core, folder, **dict(zip(names, [*control, "<s>", "</s>"], strict=True)))

    return Kind(write)


def ending_pieces() -> Kind:
    """T5's kind: pieces by probability, and an end after every text."""

    def write(folder: Path) -> Encode:
        ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        held = _trained(folder / "spiece.model", "unigram", vocab_size=60, hard_vocab_limit=False, **ids)
        return lambda text: [*(int(token) for token in held.encode(text)), ids["eos_id"]]

    return Kind(write)


def _trained(path: Path, kind: str, **settings: object) -> Any:
    """A SentencePiece model trained on a few sentences, without normalisation rules."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 50),
        model_writer=made,
        model_type=kind,
        normalization_rule_name="identity",
        minloglevel=2,
        **settings,
    )
    path.write_bytes(made.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def _saved(core: Tokenizer, folder: Path, **names: str) -> Encode:
    made = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    if "cls_token" not in names:
        made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(folder)
    held: Any = AutoTokenizer.from_pretrained(folder)
    return lambda text: [int(token) for token in held(text)["input_ids"]]
