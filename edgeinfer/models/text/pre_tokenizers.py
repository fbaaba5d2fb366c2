r"""Pre-tokenizers of byte-pair encodings as data: how a text is cut into words before pieces of it are merged.

In: the value of `tokenizer.ggml.pre`. Out: a `PreTokenizer`. Each of its expressions splits every piece left by the
ones before it; its matches and the text between them become pieces of their own. Expressions are written for
Oniguruma, as in the models' own `tokenizer.json` files; names follow the GGUF convention. A GGUF file does not say
whether a tokenizer composes characters first (Unicode's form NFC), so the table does. Knows no vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeinfer.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions applied one after the other.

    `ignore_merges`: a word that is a token is taken whole. `composes`: characters are composed first (NFC).
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    composes: bool = False


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
_QWEN2_NFC = replace(_QWEN2, composes=True)
_GPT4O_PATTERN = f"{_cased(_CONTRACTION + '?')}|\\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_SPACES}"
_GPT4O = PreTokenizer((_GPT4O_PATTERN,))
_DEEPSEEK3_PATTERN = (
    f"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\\r\\n\\p{{L}}\\p{{P}}\\p{{S}}]?[\\p{{L}}\\p{{M}}]+"
    f"| ?[\\p{{P}}\\p{{S}}]+[\\r\\n]*|{_SPACES}"
)
_CHINESE_JAPANESE = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _CHINESE_JAPANESE, _DEEPSEEK3_PATTERN))
_LEADING_DIGITS = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))"
"""The digits left at the front when a number is split into threes from its end."""
_AYA = PreTokenizer((r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)", _GPT4O_PATTERN), composes=True)
"""Splits `\\d{1,3}(?=(?:\\d{3})*\b)`, threes from a number's end, in time that grows with the text alone."""
_LEADING = r"\d{1,2}(?=(?:\d{3})+(?!\d)|(?!\d))"
_THREES = rf"(?:(?<!\d){_LEADING}|\d{{3}})?+(?:\D++(?:{_LEADING})?+)*+"
r"""Splits before `(?=(\d{3})+(?!\d))`, what precedes threes counted from the end, again without trying all places."""
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI_WORDS = _cased(_CONTRACTION + "?").replace(_UPPER, _UPPER[:-1] + _NOT_HAN).replace(_LOWER, _LOWER[:-1] + _NOT_HAN)
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
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "trillion", "granite-docling", "exaone4", "gigachat"), _GPT2),
    **dict.fromkeys(("a.x-4.0", "mellum", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en"), _GPT2),
    **dict.fromkeys(("jina-v2-code", "roberta-bpe"), _GPT2),
    **dict.fromkeys(("mpt", "olmo", "modern-bert"), replace(_GPT2, composes=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS),
    "command-r": replace(_DIGITS, composes=True),
    "chameleon": PreTokenizer(
        (
            *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )"),
            *(r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", *_GPT2.patterns),
        )
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA3),
    **dict.fromkeys(("lfm2", "jina-v5-nano", "glm4", "glm5"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _DBRX),
    "jais-2": PreTokenizer((f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1,3}}|{_SYMBOLS}|\\s*[\\r\\n]+|{_HALVING_SPACES}",)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", f"{_CONTRACTION}|{_WORD}|\\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "f2llmv2"), _QWEN2_NFC),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "solar-open", "grok-2", "kormo"), _QWEN2),
    "qwen35": PreTokenizer(
        (
            f"{_CONTRACTION}|[^\\r\\n\\p{{L}}\\p{{N}}]?[\\p{{L}}\\p{{M}}]+|\\p{{N}}"
            f"| ?[^\\s\\p{{L}}\\p{{M}}\\p{{N}}]+[\\r\\n]*|{_SPACES}",
        ),
        composes=True,
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
    "granite-embed-multi-97m": replace(_GPT4O, ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _AYA),
    "kimi-k2": PreTokenizer((rf"[\p{{Han}}]+|{_KIMI_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",)),
    "youtu": PreTokenizer(
        (
            f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CHINESE_JAPANESE}",
            f"{_cased(_CONTRACTION + '?')}|\\p{{N}}|{_SYMBOLS_SLASH}|{_SPACES}",
        ),
        ignore_merges=True,
    ),
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
    "spark2_5": PreTokenizer(
        (
            *(r"\p{N}{1,3}", _CHINESE_JAPANESE),
            f"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\\r\\n\\p{{L}}\\p{{P}}\\p{{S}}]?[\\p{{L}}\\p{{M}}]+"
            r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "superbpe": PreTokenizer((r"\p{N}+", _THREES)),
    "afmoe": PreTokenizer((_LEADING_DIGITS, r"\p{N}{1,3}", _UNSPACED_SCRIPTS, _DEEPSEEK3_PATTERN)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", *_GPT2.patterns, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": PreTokenizer((*_BLOOM.patterns, r"\p{N}")),
}
SPACED = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
"""Names of vocabularies that write a space as ▁, a text as its characters, and cut no words."""
WHITESPACE = "whitespace"
"""The name of vocabularies that leave spaces out."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a `tokenizer.ggml.pre` value. Raises UnsupportedModel, listing the available ones."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        known = ", ".join(sorted({*PRE_TOKENIZERS, *SPACED, WHITESPACE}))
        raise UnsupportedModel(f"tokenizer.ggml.pre is {name!r}; edgeinfer has: {known}")
    return found
