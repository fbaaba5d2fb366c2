"""Pre-tokenizer rules against the `regex` package and the `tokenizers` package's own components."""

from __future__ import annotations

import random

import pytest

from edgeinfer.models.text.pre_tokenizers import PRE_TOKENIZERS

# The expressions as the models' own tokenizer files have them.
CL100K_THREE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_ONE = CL100K_THREE.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# Further ones whose expressions are written otherwise here, so that their time grows with the text alone.
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", O200K)
SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
CHAMELEON = ("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )")
HAN = r"&&[^\p{Han}]]"
KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}" + HAN).replace(r"[\r\n/]*", r"[\r\n]*")
THREES_FROM_THE_END = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
NUMBERS = ("1", "12", "123", "1234", "x12345y", "1234567 and 12345678", "3.14159", "½²34", "١٢٣٤٥", "12東京3456ไทย 7")


def words(patterns: tuple[str, ...], text: str) -> list[str]:
    from tokenizers import Regex, pre_tokenizers

    splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
    return [word for word, _ in splits.pre_tokenize_str(text)]


@pytest.fixture(scope="module")
def digits() -> list[str]:
    """Texts full of digits, of several kinds, beside other characters."""
    draw = random.Random(5)
    return ["".join(draw.choices("123456789123½²١aé _.\n我", k=draw.randrange(1, 18))) for _ in range(1000)]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_words_put_together_are_the_text(name: str, texts: list[str]) -> None:
    for text in texts:
        assert "".join(words(PRE_TOKENIZERS[name].patterns, text)) == text


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("llama-bpe", CL100K_THREE),
        ("dbrx", CL100K_THREE),
        ("qwen2", CL100K_ONE),
        ("gpt-4o", O200K),
        ("tekken", TEKKEN),
    ],
)
def test_words_equal_the_regex_package(name: str, pattern: str, texts: list[str]) -> None:
    regex = pytest.importorskip("regex")
    judge = regex.compile(pattern)
    for text in texts:
        assert words(PRE_TOKENIZERS[name].patterns, text) == [found.group() for found in judge.finditer(text)]


def test_deepseek_v3_cuts_in_three_passes(texts: list[str]) -> None:
    for text in texts:
        assert words(PRE_TOKENIZERS["deepseek-v3"].patterns, text) == words(DEEPSEEK_V3, text)


@pytest.mark.parametrize(
    ("name", "component"),
    [("gpt-2", "ByteLevel"), ("smollm", "Digits+ByteLevel"), ("falcon", "Punctuation+ByteLevel+Split")],
)
def test_words_equal_the_packages_components(name: str, component: str, texts: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    known = {
        "ByteLevel": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "Digits": pre_tokenizers.Digits(individual_digits=True),
        "Punctuation": pre_tokenizers.Punctuation("contiguous"),
        "Split": pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    }
    judge = pre_tokenizers.Sequence([known[part] for part in component.split("+")])
    ours = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in texts:
        expected = [word for word, _ in judge.pre_tokenize_str(text)]
        found = [ours.pre_tokenize_str(word)[0][0] for word in words(PRE_TOKENIZERS[name].patterns, text)]
        assert found == expected, text


def test_deepseek_llm_takes_cased_letters_together() -> None:
    """Letters with case keep the space before them, others and digits do not."""
    # Its CJK class begins at U+0800 and so has Extended Greek in it.
    found = words(PRE_TOKENIZERS["deepseek-llm"].patterns, "Hello Одиссей\n你好, 123 Ὀδ अ")
    assert found == ["Hello", " Одиссей", "\n", "你好", ",", " ", "123", " ", "Ὀ", "δ", " ", "अ"]


@pytest.mark.parametrize(("name", "patterns"), [("tiny_aya", TINY_AYA), ("superbpe", SUPERBPE)])
def test_words_equal_those_of_slower_expressions(
    name: str, patterns: tuple[str, ...], digits: list[str], texts: list[str]
) -> None:
    for text in (*NUMBERS, *digits, *texts):
        assert words(PRE_TOKENIZERS[name].patterns, text) == words(patterns, text), text


@pytest.mark.parametrize(
    ("name", "tail", "first"), [("tiny_aya", "", "77"), ("tiny_aya", "a", "777"), ("superbpe", "a", "77")]
)
def test_a_number_of_any_length_is_cut_into_threes(name: str, tail: str, first: str) -> None:
    found = words(PRE_TOKENIZERS[name].patterns, "7" * 200_000 + tail)
    assert found[:2] == [first, "777"]  # digits before a letter are no number that tiny_aya counts from its end
    assert len(words(PRE_TOKENIZERS[name].patterns, "½" * 200_000 + tail)) < 200_000


def test_chameleon_cuts_as_the_packages_components(texts: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    judge = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CHAMELEON),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    ours = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in (*texts, "a<sentinel:12>IMGIMGABZ  b", "x\t\ty    z"):
        found = [ours.pre_tokenize_str(word)[0][0] for word in words(PRE_TOKENIZERS["chameleon"].patterns, text)]
        assert found == [word for word, _ in judge.pre_tokenize_str(text)], text


def test_kimi_keeps_chinese_characters_apart(texts: list[str]) -> None:
    regex = pytest.importorskip("regex")
    judge = regex.compile(KIMI, regex.V1)
    for text in (*texts, "Hello世界Hello", "中文 abcDEF'll中 12345"):
        assert words(PRE_TOKENIZERS["kimi-k2"].patterns, text) == [found.group() for found in judge.finditer(text)]


def test_afmoe_cuts_numbers_into_threes_from_their_end(texts: list[str]) -> None:
    regex = pytest.importorskip("regex")
    judge = regex.compile(THREES_FROM_THE_END)
    for text in (*NUMBERS, *texts):
        found = [word for word in words(PRE_TOKENIZERS["afmoe"].patterns, text) if judge.match(word)]
        assert found == judge.findall(text), text


def test_afmoe_cuts_a_number_of_any_length() -> None:
    found = words(PRE_TOKENIZERS["afmoe"].patterns, "7" * 200_001 + "8")
    assert [len(found), found[0], found[-1]] == [66_668, "7", "778"]
