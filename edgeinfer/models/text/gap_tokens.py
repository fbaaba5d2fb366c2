"""The tokens with which models for code fill in a gap (FIM), and prompts made of them.

In: the ids that a file declares, the texts of its special tokens; what stands before and after a gap. Out: ids. The
names are those that llama.cpp knows. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Ids = tuple[int | None, ...]
STEPS = 16
"""A prompt that does not fit is cut by multiples of its room over this."""
_DECLARED = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"), ("fim_rep",), ("fim_sep",))


def _texts(part: str, of_deepseek: str, short: str) -> tuple[str, ...]:
    """How models write the token before a part."""
    words = (f"<|fim_{part}|>", f"<fim-{part}>", f"<fim_{part}>", f"<｜fim▁{of_deepseek}｜>")
    return (*words, f"<{short}>", f"▁<{short}>", f"<|code_{part}|>", f"<|{part}|>")


_TEXTS = (
    _texts("prefix", "begin", "PRE"),
    _texts("suffix", "hole", "SUF"),
    _texts("middle", "end", "MID"),
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

        A quarter is for what follows, if that much is there on both sides. What goes before is cut in steps, so that
        the prompt begins as the one before did while somebody types, and is not read again.
        """
        room = max(0, most - 3)
        n_after = min(len(after), max(room // 4, room - len(before)))
        n_left_out = rounded_up(max(0, len(before) - (room - n_after)), max(1, room // STEPS))
        kept = before[n_left_out:]
        return [self.prefix, *kept, self.suffix, *after[: room - len(kept)], self.middle]


def rounded_up(number: int, step: int) -> int:
    """The least multiple of `step` that is not below a number."""
    return -(-number // step) * step
