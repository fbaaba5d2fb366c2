"""A model that reads a long text exactly, and the logits of tokens that continue it as answers do: one to a pass.

In: a model file and how it is opened, tokens, a mode. Out: logits. Works on the executor, so that pages, windows,
states and budgets are those of answers. The plain window has the size of a budget and no choice: all of it but the
first chunk is recent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph import budget
from edgeinfer.graph.step import PAGE, Batch, Floats, whole_blocks
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from scripts.long_context.modes import Mode, Opening
from scripts.long_context.passes import PASS_TOKENS

ROWS = 32
"""Tokens of a pass with logits."""
SPARE_PAGES = 8
"""Pages beside those of the text, for branches of it."""


class Reader:
    """A model that reads one text at a time. Close it, or use `with`."""

    def __init__(
        self, path: Path, n_context: int, opening: Opening, device: str = "cpu", n_workers: int | None = None
    ) -> None:
        """`n_context`: the longest text with what is decoded after it; sizes of modes are shares of that."""
        with ExitStack() as opened:
            blocks = opening.block_budget(n_context)
            model = opened.enter_context(open_model(path, n_context, opening.threshold, block_budget=blocks))
            self.tokenizer = Tokenizer.from_metadata(model.file.metadata)
            vocabulary = self.tokenizer.vocabulary
            self.lead = [vocabulary.bos_id] if vocabulary.add_bos and vocabulary.bos_id is not None else []
            """What texts begin with."""
            n_pages = -(-n_context // PAGE) + SPARE_PAGES
            limits = Limits(n_context, n_pages, PASS_TOKENS, ROWS, kv=opening.kv, budgets=True)
            runner = open_device(device, DeviceOptions(n_workers=n_workers))
            self._executor = Executor(runner, runner.compile(model.spec, model.file, limits), limits, "long context")
            opened.callback(self._executor.close)
            self._sequence, self._n_context = self._executor.create(), n_context
            self._has_blocks = blocks is not None
            self._opened = opened.pop_all()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, tokens: Sequence[int], n_same: int = 0) -> None:
        """Read a text whose first `n_same` tokens are those of the last one."""
        first = self._executor.truncate(self._sequence, min(n_same, self._executor.n_cached(self._sequence)))
        while first < len(tokens):
            stop = min(len(tokens), (first + PASS_TOKENS) // PAGE * PAGE)
            part = tokens[first:stop]
            batch = self._chain(self._sequence, part, 0, 0)
            if self._has_blocks:
                batch = replace(batch, blocks=whole_blocks(first, len(part)))
            self._executor.evaluate(batch)
            self._executor.commit(self._sequence, np.arange(len(part), dtype=np.int32))
            first = stop

    def decoded(self, tokens: Sequence[int], mode: Mode) -> Floats:
        """Logits after each of these tokens, which follow the text one by one in a mode: float32[T, V].

        Without a budget several go into a pass, which gives the same bits. The text is as it was afterwards.
        """
        n_seen, logits, n_together = mode.budget(self._n_context), list[Floats](), 1 if mode.size else ROWS
        if mode.is_window:  # the rule adds the first chunk and the token's own to the recent ones
            n_seen = max(1, -(-n_seen // PAGE) - 2) * PAGE
        with self._branch() as branch, _without_choice() if mode.is_window else nullcontext():
            for first in range(0, len(tokens), n_together):
                part = tokens[first : first + n_together]
                logits.append(self._executor.evaluate(self._chain(branch, part, len(part), n_seen)).copy())
                self._executor.commit(branch, np.arange(len(part), dtype=np.int32))
        return np.concatenate(logits)

    @contextmanager
    def _branch(self) -> Iterator[int]:
        branch = self._executor.branch(self._sequence)
        try:
            yield branch
        finally:
            self._executor.free(branch)

    def _chain(self, sequence: int, tokens: Sequence[int], n_outputs: int, n_seen: int) -> Batch:
        """A batch of consecutive tokens with a budget, 0 for none, and logits for the last ones."""
        order = np.arange(len(tokens), dtype=np.int32)
        return Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.full_like(order, sequence),
            positions=order + np.int32(self._executor.n_cached(sequence)),
            parents=order - np.int32(1),
            outputs=order[len(order) - n_outputs :],
            budgets=np.full_like(order, n_seen) if n_seen else None,
        )


def _without_choice() -> AbstractContextManager[object]:
    """Makes all of a budget but the first chunk recent."""
    return patch.object(budget, "RECENT_SHARE", 1)
