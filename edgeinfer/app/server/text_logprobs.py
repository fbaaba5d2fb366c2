"""Log probabilities of texts in the form of OpenAI's completions: lists of tokens, of numbers, of likely tokens.

In: `TokenLogprobs` of answers and of prompts. Out: records, which can be joined. Every list of likely tokens has the
token itself too, so it may have one more than was asked for; the first token of a prompt has null in place of both. A
token that is no text by itself is written as OpenAI does: `bytes:\\xf0\\x9f`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.server.objects import Record
from edgeinfer.models.text.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.models.text import Tokenizer


def text_logprobs(logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int) -> Record:
    """The record of an answer; `offset`: number of characters before this text."""
    offsets = []
    for piece in tokenizer.pieces(chosen.token for chosen in logprobs):
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": [_written(chosen.token, tokenizer) for chosen in logprobs],
        "token_logprobs": [chosen.logprob for chosen in logprobs],
        "top_logprobs": [_likely(chosen, tokenizer) for chosen in logprobs],
        "text_offset": offsets,
    }


def prompt_logprobs(
    tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, text: str
) -> Record:
    """The record of a prompt. `logprobs`: of all tokens but the first; `text`: as it is echoed."""
    decoder, offset, offsets = StreamDecoder(tokenizer, show_control=True), 0, []
    for number, token in enumerate(tokens):
        offsets.append(offset)
        piece = decoder.push(token)
        if number or text.startswith(piece):  # a token that the tokenizer put before the text is not echoed
            offset += len(piece)
    record = text_logprobs(logprobs, tokenizer, 0)
    return {
        "tokens": [_written(token, tokenizer) for token in tokens],
        "token_logprobs": [None, *record["token_logprobs"]],
        "top_logprobs": [None, *record["top_logprobs"]],
        "text_offset": offsets,
    }


def joined(one: Record, other: Record) -> Record:
    """The record of two texts, one after the other."""
    return {key: values + other[key] for key, values in one.items()}


def _likely(chosen: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """Likely tokens and the token itself by their texts; of several with the same text the likeliest."""
    likely: dict[str, float] = {}
    for token, value in (*chosen.top, (chosen.token, chosen.logprob)):
        likely.setdefault(_written(token, tokenizer), value)
    return likely


def _written(token: int, tokenizer: Tokenizer) -> str:
    """The text of a token, or its bytes."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
