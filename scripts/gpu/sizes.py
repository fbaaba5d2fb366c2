"""How much `gpu_check.py` measures, and functions that format tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes copied, repeats, tokens of prompts and of answers, token counts of products, cached tokens of attention.

    `n_blocks`, `n_rounds`: for the kernels that only compute. `golden_tokens`: for the golden models named in
    `goldens`; () means all of them.
    """

    copied_bytes: int
    repeats: int
    n_prompt: int
    n_decoded: int
    counts: tuple[int, ...]
    depth: int
    n_blocks: int
    n_rounds: int
    golden_tokens: int
    goldens: tuple[str, ...]


FULL = Size(1 << 30, 20, 512, 128, (1, 2, 4, 8, 16, 32, 64), 4096, 4096, 1024, 72, ())
TINY = Size(1 << 12, 1, 3, 2, (1, 2), 3, 1, 1, 3, ("phi3-f16",))


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def share(value: float, ceiling: float | None) -> str:
    """A share of a limit in percent; empty if there is no limit."""
    return "" if ceiling is None else f"{100 * value / ceiling:.0f} %"


def megabytes(n_bytes: float) -> str:
    """A number of MB, with decimals for small ones."""
    return f"{n_bytes / 1e6:.1f}" if n_bytes >= 1e6 else f"{n_bytes / 1e6:.4f}"
