"""Going on with an answer that was begun: which tokens its text is read as.

In: messages, the text of a partial answer, tokens that were generated or read before. Out: tokens. Text that is
tokenized anew is often cut in other places than the model cut it, so tokens that are known to stand for the text go
first: the cache holds them, and the model goes on as if it had not been stopped. Knows no cache and no template.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.models.text import Message, StreamDecoder, Tokenizer

ASSISTANT = "assistant"


def split_partial(messages: Sequence[Message]) -> tuple[Sequence[Message], str | None]:
    """The messages before an answer that is to be continued, and its text so far; None where the last is none.

    A last message of the assistant is such an answer, unless it calls tools.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != ASSISTANT or last.extra.get("tool_calls"):
        return messages, None
    return messages[:-1], last.text


def partial_tokens(tokenizer: Tokenizer, head: Sequence[int], text: str, known: Sequence[int] = ()) -> list[int]:
    """The tokens of a partial answer's `text` after those of `head`.

    `known`: tokens that were read or generated; those of them that follow `head` and begin the text are taken as they
    are, in whole characters.
    """
    n_head = len(head)
    kept, n_said = _agreeing(tokenizer, known[n_head:], text) if list(known[:n_head]) == list(head) else ([], 0)
    goes_on = bool(kept) or not (n_head and tokenizer.vocabulary.is_control(head[-1]))
    return kept + tokenizer.encode(text[n_said:], add_special=False, goes_on=goes_on)


def _agreeing(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> tuple[list[int], int]:
    """The most of these tokens whose text begins `text`, and how many characters that is."""
    decoder = StreamDecoder(tokenizer)
    n_kept = n_said = at = 0
    for number, token in enumerate(tokens, 1):
        if token < 0:  # a row of numbers, which no text stands for
            break
        piece = decoder.push(token)
        if not text.startswith(piece, at):
            break
        at += len(piece)
        if decoder.is_whole:
            n_kept, n_said = number, at
        if at == len(text) and decoder.is_whole:
            break
    return list(tokens[:n_kept]), n_said
