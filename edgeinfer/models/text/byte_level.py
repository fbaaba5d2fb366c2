r"""Byte-level BPE: pre-tokenizers as data, and text to token ids by merges over bytes written as characters.

In: the value of `tokenizer.ggml.pre`; text without special tokens. Out: a `PreTokenizer`; ids, through the `tokenizers`
package, which is imported when an encoder is created. A pre-tokenizer splits a text into words before merges: each of
its expressions splits every piece left by the ones before it; its matches and the text between them become pieces of
their own. Expressions are written for Oniguruma, as in the models' own `tokenizer.json` files; names follow the GGUF
convention. Does not handle special tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.text.vocabulary import TokenType, Vocabulary


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions applied one after the other; with `ignore_merges`, a word that is a token is taken whole."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False


# Parts shared by the expressions below.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HALVING_SPACES = "".join(rf"\s{{{2**power}}}(?!\S)|" for power in range(9, 1, -1)) + r"\s{1,2}(?!\S)|\s{1}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
# The cased letters used by DeepSeek-LLM, as ranges of code points.
_CASED_RANGES = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943"
)


def _character_class(ranges: str) -> str:
    """`ranges` of code points ("41-5A B5") as the contents of a character class."""
    return "".join("-".join(f"\\x{{{end}}}" for end in span.split("-")) for span in ranges.split())


def _cased(tail: str) -> str:
    """Words, split where lower case changes to upper case, each followed by `tail`."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{_UPPER}*{_LOWER}+{tail}|{lead}{_UPPER}+{_LOWER}*{tail}"


_GPT2 = PreTokenizer((r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",))
_DIGITS = PreTokenizer((r"\p{N}", *_GPT2.patterns))
_LLAMA3_PATTERN = f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_LLAMA3 = PreTokenizer((_LLAMA3_PATTERN,), ignore_merges=True)
_DBRX = PreTokenizer((_LLAMA3_PATTERN,))
_QWEN2_PATTERN = f"{_CONTRACTION}|{_WORD}|\\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = PreTokenizer((_QWEN2_PATTERN,))
_GPT4O = PreTokenizer((f"{_cased(_CONTRACTION + '?')}|\\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_SPACES}",))
_DEEPSEEK3_PATTERN = (
    f"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\\r\\n\\p{{L}}\\p{{P}}\\p{{S}}]?[\\p{{L}}\\p{{M}}]+"
    f"| ?[\\p{{P}}\\p{{S}}]+[\\r\\n]*|{_SPACES}"
)
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_PATTERN))
_LEADING_DIGITS = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))"
"""The digits left at the front when a number is split into threes from its end."""
_UNSPACED_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_BLOOM = PreTokenizer((r" ?[^(\s|.,!?…。，、।۔،)]+",))
_BAILING = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", *_GPT2.patterns, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _GPT2),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de"), _GPT2),
    **dict.fromkeys(("jina-v2-es", "jina-v2-de"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "mellum2": _DIGITS,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _DBRX),
    "jais-2": PreTokenizer((f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1,3}}|{_SYMBOLS}|\\s*[\\r\\n]+|{_HALVING_SPACES}",)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", f"{_CONTRACTION}|{_WORD}|\\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"), _QWEN2),
    **dict.fromkeys(("kormo", "f2llmv2"), _QWEN2),
    "qwen35": PreTokenizer(
        (
            f"{_CONTRACTION}|[^\\r\\n\\p{{L}}\\p{{N}}]?[\\p{{L}}\\p{{M}}]+|\\p{{N}}"
            f"| ?[^\\s\\p{{L}}\\p{{M}}\\p{{N}}]+[\\r\\n]*|{_SPACES}",
        )
    ),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2_PATTERN)),
    "ufakzeka": PreTokenizer((f"{_WORD}|\\p{{N}}|{_SYMBOLS}|{_SPACES}",)),
    "seed-coder": PreTokenizer((f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1}}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+|{_SPACES}",)),
    "exaone-moe": PreTokenizer(
        (
            f"{_CONTRACTION}|[^\\r\\n\\p{{L}}\\p{{N}}]?(?:\\p{{L}}\\p{{M}}*(?: \\p{{L}}\\p{{M}}*)*)+|\\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "tekken": PreTokenizer((f"{_cased('')}|\\p{{N}}|{_SYMBOLS_SLASH}|{_SPACES}",), ignore_merges=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            f"\\s?[{_character_class(_CASED_RANGES)}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "afmoe": PreTokenizer((_LEADING_DIGITS, r"\p{N}{1,3}", _UNSPACED_SCRIPTS, _DEEPSEEK3_PATTERN)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", *_GPT2.patterns, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": PreTokenizer((*_BLOOM.patterns, r"\p{N}")),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a `tokenizer.ggml.pre` value. Raises UnsupportedModel, listing the available ones."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModel(f"tokenizer.ggml.pre is {name!r}; edgeinfer has: {known}")
    return found


def byte_characters() -> dict[int, str]:
    """The printable character for each byte in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class ByteLevelEncoder:
    """Encodes plain text with the merges of a vocabulary; one instance can be used by several threads.

    Raises BadGGUF if merges are malformed or produce a token missing from the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre_tokenizer: PreTokenizer) -> None:
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types
        self._bytes = {character: byte for byte, character in byte_characters().items()}
        ids = first_ids(vocabulary)
        self._missing = frozenset(byte for character, byte in self._bytes.items() if character not in ids)
        self._tokenizer = merging_tokenizer(ids, merges, pre_tokenizer)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position. Characters that are `unwritable` yield no token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` whose bytes are missing from the vocabulary."""
        if not self._missing or self._missing.isdisjoint(text.encode()):
            return ""
        return "".join(character for character in text if not self._missing.isdisjoint(character.encode()))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for in a text."""
        text = self._tokens[token]
        if self._types[token] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return text.encode()
        try:
            return bytes([self._bytes[character] for character in text])
        except KeyError:
            return text.encode()


def first_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of each token's text; for equal texts the first."""
    ids = dict(zip(vocabulary.tokens, range(vocabulary.n_tokens), strict=True))
    if len(ids) < len(vocabulary.tokens):
        ids = {text: token for token, text in reversed(list(enumerate(vocabulary.tokens)))}
    return ids


def merging_tokenizer(ids: dict[str, int], merges: list[str], pre_tokenizer: PreTokenizer) -> Any:
    """A `tokenizers.Tokenizer` that splits and merges, without special tokens. Raises BadGGUF."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers
    from tokenizers.models import BPE

    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges]
    if set(map(len, pairs)) - {2}:
        wrong = next(index for index, pair in enumerate(pairs) if len(pair) != 2)
        raise BadGGUF(
            f"tokenizer.ggml.merges[{wrong}] is {merges[wrong]!r}; a merge is two pieces with a space between"
        )
    try:
        tokenizer = Tokenizer(BPE(ids, pairs, ignore_merges=pre_tokenizer.ignore_merges))
    except Exception as error:
        # The package raises bare Exception for merges whose pieces are not tokens.
        raise BadGGUF(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return tokenizer
