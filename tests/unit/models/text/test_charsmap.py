"""Maps of characters that a file gives: whole ones are read, damaged ones refused before a text could follow them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import normalizers

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer, vocabulary_of
from edgeinfer.models.text.unigram import CHARSMAP, check_charsmap
from tests.golden.goldens import DATA

CHANGES = {"ﬁ": "fi", "½": "1⁄2", "Ω": "Ω", "é": "é"}
TEXT = "ﬁne ½ Ω é é́ 東京 😀 plain"
RERANKER = DATA / "converted" / "xlm-roberta-reranker-bf16.gguf"
BLOCK = 256
"""Units of a node's children, one for each byte."""


@pytest.fixture(scope="module")
def whole() -> bytes:
    """A map of a few characters, as SentencePiece writes larger ones."""
    units, texts, children = np.zeros(BLOCK, np.uint32), b"", {0: 0}
    for character, normal in CHANGES.items():
        node = 0
        for byte in character.encode():
            if children.setdefault(node, 0) == 0:
                children[node] = len(units)
                units = np.append(units, np.zeros(BLOCK, np.uint32))
                units[node] |= (node ^ children[node]) << 10
            node = children[node] ^ byte
            units[node] |= byte
        children[node] = len(units)
        units = np.append(units, np.zeros(BLOCK, np.uint32))
        units[node] |= (node ^ children[node]) << 10 | 1 << 8
        units[children[node]] = 1 << 31 | len(texts)
        texts += normal.encode() + b"\0"
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts


def with_units(charsmap: bytes, change: Callable[[np.ndarray], None]) -> bytes:
    """The map with other units in its trie."""
    (n_bytes,) = struct.unpack_from("<I", charsmap)
    units = np.frombuffer(charsmap, "<u4", n_bytes // 4, 4).copy()
    change(units)
    return charsmap[:4] + units.tobytes() + charsmap[4 + n_bytes :]


def test_a_whole_map_is_read(whole: bytes) -> None:
    check_charsmap(whole)
    assert normalizers.Precompiled(whole).normalize_str("ﬁne ½ Ω") == "fine 1⁄2 Ω"


def far(units: np.ndarray) -> None:
    units[0] = 0x3FFFFF << 10


def far_root_that_looks_like_a_leaf(units: np.ndarray) -> None:
    units[0] = 0xFFFFFFFF


def leaf_beyond_the_texts(units: np.ndarray) -> None:
    units[units >> 31 == 1] = 0xFFFFFFFF


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "no size": lambda held: held[:3],
    "cut short": lambda held: held[:500],
    "no trie": lambda held: struct.pack("<I", 0) + held[4:],
    "not of whole units": lambda held: struct.pack("<I", 1026) + held[4:],
    "trie of one unit": lambda held: struct.pack("<II", 4, 0x7FFFFFFF),
    "beyond the trie": lambda held: with_units(held, far),
    "beyond the trie from a root that looks like a leaf": lambda held: with_units(
        held, far_root_that_looks_like_a_leaf
    ),
    "beyond the texts": lambda held: with_units(held, leaf_beyond_the_texts),
    "texts missing": lambda held: held[: 4 + struct.unpack_from("<I", held)[0] + 4],
    "into characters": lambda held: held[: 4 + struct.unpack_from("<I", held)[0]] + b"\x80" * 100,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_map_is_refused(whole: bytes, case: str) -> None:
    with pytest.raises(BadGGUF, match="precompiled_charsmap cannot be read"):
        check_charsmap(BROKEN[case](whole))


def test_what_passes_leads_nowhere_else(whole: bytes) -> None:
    """The package that follows a map ends the program where it leads outside: no random damage may get there."""
    random, n_passed = np.random.default_rng(3), 0
    (n_bytes,) = struct.unpack_from("<I", whole)
    for _ in range(60):
        held = bytearray(whole)
        for place in random.integers(4, 4 + n_bytes, random.choice([1, 3])).tolist():
            held[place] ^= 1 << int(random.integers(0, 8))
        try:
            check_charsmap(bytes(held))
        except BadGGUF:
            continue
        n_passed += 1
        normalizers.Precompiled(bytes(held)).normalize_str(TEXT)
    assert 5 < n_passed < 60


class Metadata(dict[str, object]):
    """What a file says of its tokenizer."""

    def numbers(self, key: str) -> np.ndarray:
        found = self[key]
        assert isinstance(found, np.ndarray)
        return found


@pytest.mark.parametrize(
    ("charsmap", "reason"),
    [
        (np.frombuffer(struct.pack("<II", 4, 0x7FFFFFFF), np.uint8), "its trie points beyond its 1 units"),
        (np.array([1.0, np.nan]), "must be an array of bytes, not of float64"),
    ],
)
def test_a_file_with_a_broken_map_is_refused(charsmap: np.ndarray, reason: str) -> None:
    with GGUFFile.open(RERANKER) as file:
        vocabulary = vocabulary_of(file.metadata)
    with pytest.raises(BadGGUF, match=reason):
        Tokenizer.with_vocabulary(vocabulary, Metadata({CHARSMAP: charsmap}))  # type: ignore[arg-type]
