"""The tokens with which models for code fill in a gap (FIM), and prompts made of them.

In: the ids that a file declares, the texts of its special tokens; what stands before and after a gap. Out: ids. The
names are those that llama.cpp knows. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Ids = tuple[int | None, ...]
_DECLARED = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"), ("fim_rep",), ("fim_sep",))
_TEXTS = (
    ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
    ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
    ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
    ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ("<|file_sep|>",),
)


def gap_ids(declared: Mapping[str, int | None], special: Mapping[str, int]) -> Ids:
    """The tokens before a prefix, a suffix, the gap, a repository's name and a file; None for those there are not."""
    return tuple(
        next((token for name in names if (token := declared.get(name)) is not None), None)
        or next((special[text] for text in texts if text in special), None)
        for names, texts in zip(_DECLARED, _TEXTS, strict=True)
    )


@dataclass(frozen=True, slots=True)
class GapTokens:
    """The tokens before a prefix, a suffix and the gap; and those before a repository's name and a file, if any."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None

    @classmethod
    def of(cls, ids: Ids) -> GapTokens | None:
        """Those of a vocabulary; None if it has not all that a gap needs."""
        if not ids or None in ids[:3]:
            return None
        return cls(*ids)  # type: ignore[arg-type]

    def prompt(self, before: Sequence[int], after: Sequence[int], most: int) -> list[int]:
        """The prompt for what is between two texts, of at most `most` tokens: the nearest of each are kept.

        A quarter is for what follows, if that much is there on both sides.
        """
        room = max(0, most - 3)
        n_after = min(len(after), max(room // 4, room - len(before)))
        n_before = min(len(before), room - n_after)
        kept = before[len(before) - n_before :]
        return [self.prefix, *kept, self.suffix, *after[:n_after], self.middle]
