"""tokenizer.json of the `tokenizers` package, with the settings beside it: read from a folder, and written for others.

In: a folder, or the metadata of a GGUF file. Out: a `Vocabulary`, ids and pieces, through the `tokenizers` package,
which is imported when a tokenizer is opened; or two JSON texts. Reads byte-level tokenizers and those that write a
space as ▁. Writes byte-level vocabularies only: SentencePiece vocabularies merge by scores, which no list of merges
expresses exactly (`sentencepiece`). Independent of the folder's other contents.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.errors import EdgeInferError, ModelNotFound, UnsupportedModel
from edgeinfer.models.json_config import JsonConfig
from edgeinfer.models.text.byte_level import byte_characters, first_ids, merging_tokenizer
from edgeinfer.models.text.chat_template import ChatTemplate
from edgeinfer.models.text.encoders import is_byte_level, merges_of
from edgeinfer.models.text.pre_tokenizers import pre_tokenizer
from edgeinfer.models.text.token_types import END_OF_TURN, TokenType, end_of_generation
from edgeinfer.models.text.tokenizer import vocabulary_of
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary

FILE = "tokenizer.json"
SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
HOLE = "[unused token %d]"
"""The text of an id that the tokenizer does not use."""
MOST_HOLES = 100_000
CLASSES = {"qwen2": "Qwen2Tokenizer"}
"""The tokenizer class that readers use for a pre-tokenizer, if not the default one."""


class FolderText:
    """The tokenizer of one folder; one instance can be used by several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelNotFound if there is no tokenizer.json, UnsupportedModel if it cannot be used."""
        self._folder = folder
        path = folder / FILE
        if not path.is_file():
            raise ModelNotFound(
                f"{folder} has no {FILE}; put the one that was published with the model beside its graph"
            )
        self._tokenizer, self._literal = _opened(path), _opened(path)
        self._literal.encode_special_tokens = True  # treats control tokens written in a text as plain text
        self._is_byte_level = _is_byte_level(path)
        self._bytes = {character: byte for byte, character in byte_characters().items()}
        self._added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._found = self._read()

    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary, with what its settings say about special tokens."""
        return self._found

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text, as `models.text.Tokenizer.encode`."""
        tokenizer = self._tokenizer if parse_special else self._literal
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for. Raises EdgeInferError for an id outside the vocabulary."""
        if not 0 <= token < self._found.n_tokens:
            raise EdgeInferError(f"token {token} is outside the vocabulary of {self._found.n_tokens} tokens")
        text = self._found.tokens[token]
        if token in self._added or self._tokenizer.id_to_token(token) is None:
            return text.encode()
        if self._is_byte_level:
            return b"".join(
                bytes([self._bytes[character]]) if character in self._bytes else character.encode()
                for character in text
            )
        if matched := BYTE.fullmatch(text):
            return bytes.fromhex(matched[1])
        return text.replace(SPACE, " ").encode()

    def _read(self) -> Vocabulary:
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        by_id = {token: text for text, token in ids.items()}
        n_tokens = max(by_id, default=-1) + 1
        if n_tokens - len(by_id) > MOST_HOLES:
            raise UnsupportedModel(f"{self._folder / FILE} has ids up to {n_tokens - 1} for {len(by_id)} tokens")
        tokens = tuple(by_id.get(token, HOLE % token) for token in range(n_tokens))
        settings = JsonConfig.read(self._folder / "tokenizer_config.json")
        named = {name: ids.get(_text(settings, name) or "") for name in ("bos_token", "eos_token", "pad_token")}
        unknown = ids.get(_text(settings, "unk_token") or "")
        types = tuple(self._type(token, text, by_id, unknown) for token, text in enumerate(tokens))
        special = {tokens[token]: token for token in reversed(range(n_tokens)) if types[token] in SPECIAL}
        begin, end = named["bos_token"], named["eos_token"]
        around: list[int] = self._tokenizer.encode("", add_special_tokens=True).ids
        if begin is None and around and around[0] != end:
            begin = around[0]
        eot = next((special[name] for name in END_OF_TURN if name in special), None)
        declared = frozenset(token for token in self._declared_ends() if 0 <= token < n_tokens)
        plain = self._tokenizer.encode("a", add_special_tokens=False).tokens
        return Vocabulary(
            model="gpt2" if self._is_byte_level else "llama",
            pre=FILE,
            tokens=tokens,
            scores=(),
            types=types,
            bos_id=begin,
            eos_id=end,
            eot_id=eot,
            pad_id=named["pad_token"],
            unk_id=unknown,
            add_bos=begin is not None and around[:1] == [begin],
            add_eos=end is not None and around[-1:] == [end],
            add_space_prefix=not self._is_byte_level and bool(plain) and plain[0].startswith(SPACE),
            end_of_generation=end_of_generation(special, (end, eot)) | declared,
            suppressed=frozenset(token for token in self._suppressed() if 0 <= token < n_tokens),
            strips_right=frozenset(token for token, added in self._added.items() if added.rstrip),
        )

    def _type(self, token: int, text: str, by_id: dict[int, str], unknown: int | None) -> int:
        if token not in by_id:
            return TokenType.UNUSED
        if token == unknown:
            return TokenType.UNKNOWN
        if token in self._added:
            return TokenType.CONTROL if self._added[token].special else TokenType.USER_DEFINED
        return TokenType.BYTE if not self._is_byte_level and BYTE.fullmatch(text) else TokenType.NORMAL

    def _declared_ends(self) -> tuple[int, ...]:
        """Tokens that end an answer according to the model's settings."""
        read = JsonConfig.read
        return (
            *read(self._folder / "genai_config.json").integers("model", "eos_token_id"),
            *read(self._folder / "generation_config.json").integers("eos_token_id"),
            *read(self._folder / "config.json").integers("eos_token_id"),
        )

    def _suppressed(self) -> tuple[int, ...]:
        """Tokens that answers never contain according to the model's settings."""
        return JsonConfig.read(self._folder / "generation_config.json").integers("suppress_tokens")


def _opened(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as reason:  # the package raises plain Exceptions
        raise UnsupportedModel(f"{path} cannot be read by the tokenizers package: {str(reason)[:200]}") from None


def _is_byte_level(path: Path) -> bool:
    """Whether tokens use GPT-2's characters for bytes; otherwise they use ▁. Raises UnsupportedModel for others."""
    settings = JsonConfig.read(path)
    decoders = (
        settings.text("decoder", "type"),
        *(each.text("type") for each in settings.objects("decoder", "decoders")),
    )
    if "ByteLevel" in decoders:
        return True
    if "Metaspace" in decoders or any(
        each.text("pattern", "String") == SPACE for each in settings.objects("decoder", "decoders")
    ):
        return False
    found = json.dumps([name for name in decoders if name])
    raise UnsupportedModel(
        f"{path} decodes with {found}; edgeinfer reads byte-level tokenizers and those that write a space as {SPACE}"
    )


def _text(settings: JsonConfig, name: str) -> str | None:
    """The text of a special token: a string, or an object that contains it."""
    return settings.text(name) or settings.text(name, "content")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Contents of tokenizer.json and tokenizer_config.json."""

    tokenizer: str
    settings: str


def tokenizer_files(metadata: TokenizerMetadata, n_context: int) -> TokenizerFiles:
    """The files of a vocabulary. Raises UnsupportedModel if it is not byte-level, BadGGUF."""
    vocabulary = vocabulary_of(metadata)
    if not is_byte_level(vocabulary):
        raise UnsupportedModel(
            f"the vocabulary is no byte-level one, but {vocabulary.model!r}, which edgeinfer does not write as "
            "tokenizer.json (SentencePiece's order of merges cannot be stated there); take the tokenizer files from "
            "where the model was published"
        )
    return TokenizerFiles(_tokenizer(vocabulary, metadata), _settings(vocabulary, metadata, n_context))


def _tokenizer(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> str:
    from tokenizers import AddedToken, decoders, normalizers, processors

    rules = pre_tokenizer(vocabulary.pre)
    made = merging_tokenizer(first_ids(vocabulary), merges_of(metadata), rules)
    if rules.composes:
        made.normalizer = normalizers.NFC()
    for token in vocabulary.special_ids():
        control = vocabulary.is_control(token)
        made.add_tokens([AddedToken(vocabulary.tokens[token], special=control, normalized=False)])
    made.decoder = decoders.ByteLevel()
    before = [vocabulary.bos_id] if vocabulary.add_bos else []
    after = [vocabulary.eos_id] if vocabulary.add_eos else []
    around = [(vocabulary.tokens[token], token) for token in (*before, *after) if token is not None]
    if around:
        names = [[f"{vocabulary.tokens[token]}" for token in part if token is not None] for part in (before, after)]
        made.post_processor = processors.TemplateProcessing(
            single=[*names[0], "$A", *names[1]], pair=None, special_tokens=around
        )
    text: str = made.to_str(pretty=True)
    return text


def _settings(vocabulary: Vocabulary, metadata: TokenizerMetadata, n_context: int) -> str:
    template = ChatTemplate.from_metadata(metadata, vocabulary)
    settings: dict[str, object] = {
        "tokenizer_class": CLASSES.get(vocabulary.pre, "GPT2Tokenizer"),
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": n_context,
        **vocabulary.special_texts(),
    }
    if template.names:
        settings["chat_template"] = template.sources[template.names[0]]
    return json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
