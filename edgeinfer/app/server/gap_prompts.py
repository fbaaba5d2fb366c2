"""Prompts for filling in a gap, for models with tokens for it: `suffix` in completions, and /infill.

In: texts or tokens around a gap, other files. Out: tokens of a prompt. Raises APIError for models without such tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError
from edgeinfer.models.text.gap_tokens import STEPS, GapTokens, rounded_up

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM

ROOM = 128
"""Tokens of the context that are left to an answer without a limit."""
SNIPPET = "\n\n--- snippet ---\n\n"
"""Between other files, for models without a token for it; as in llama.cpp."""
REPOSITORY, FILE = "myproject\n", "filename\n"
"""Names where the request has none, as in llama.cpp."""


def gap_prompt(
    llm: LLM,
    before: str | Sequence[int],
    after: str | Sequence[int],
    most_tokens: int | None,
    files: Sequence[tuple[str | None, str]] = (),
) -> list[int]:
    """The prompt for what is between two texts. `files`: names and texts of other files, the nearest last.

    Of texts that do not fit beside `most_tokens` of an answer, what is far from the gap is left out; other files have
    half of the context at most. The order is llama.cpp's, but for the token that begins a text: it begins ours, where
    llama.cpp has the other files before it. Raises APIError.
    """
    gap = GapTokens.of(llm.prompts.tokenizer.vocabulary.gap)
    if gap is None:
        message = f"{llm.info.name} has no tokens for filling in gaps (FIM), which a suffix needs"
        raise APIError(400, message, param="suffix")
    vocabulary, n_context = llm.prompts.tokenizer.vocabulary, llm.info.n_context
    bos = [vocabulary.bos_id] if vocabulary.add_bos and vocabulary.bos_id is not None else []
    most = max(0, n_context - len(bos) - (ROOM if most_tokens is None else min(most_tokens, n_context // 2)))
    prompt = gap.prompt(_tokens(before, llm), _tokens(after, llm), most)
    extra = _extra_tokens(gap, files, llm) if files else []
    return [*bos, *extra[max(0, len(extra) - _room(n_context, n_context - most + len(prompt))) :], *prompt]


def _room(n_context: int, n_taken: int) -> int:
    """The most tokens of other files beside `n_taken`.

    The same for a request that only has them read as for the gap, and while somebody types: a prompt that begins
    elsewhere would be read again.
    """
    taken = max(n_context // 2, rounded_up(n_taken, max(1, n_context // STEPS)))
    return max(0, n_context - taken)


def _tokens(text: str | Sequence[int], llm: LLM) -> Sequence[int]:
    """The tokens of a text, in which no special token is read."""
    return llm.tokenize(text, add_special=False, parse_special=False) if isinstance(text, str) else text


def _extra_tokens(gap: GapTokens, files: Sequence[tuple[str | None, str]], llm: LLM) -> list[int]:
    """The tokens of other files, and of the beginning of the file with the gap."""
    tokens: list[int] = []
    if gap.repository is not None:
        tokens += [gap.repository, *_tokens(REPOSITORY, llm)]
    for name, text in files:
        if gap.file is None:
            tokens += _tokens(f"{SNIPPET}{text}", llm)
        else:
            tokens += [gap.file, *_tokens(f"{name or 'tmp'}\n", llm), *_tokens(text, llm)]
    if gap.file is not None:
        tokens += [gap.file, *_tokens(FILE, llm)]
    return tokens
