"""Which pages have summaries: budgets choose among chunks by the lowest and the highest keys of each (`graph.budget`).

A complete page of committed tokens is summarised once, by the lane, in the first pass with a budget that may choose it,
and again after its keys have changed. In: placed steps, and pages that are taken or written again. Out: the pages that
a step has to summarise. Holds no keys and knows no device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.graph.step import PAGE, Step


class PageSummaries:
    """Which of `n_pages` pages are summarised."""

    def __init__(self, n_pages: int) -> None:
        self._is_made = np.zeros(n_pages, bool)

    def completed(self, step: Step) -> Step:
        """The step with the pages to summarise: complete ones, but the first, of sequences with budgets."""
        budgets = step.batch.budgets
        if budgets is None:
            return step
        if len(step.tables) == 1:
            pages = step.tables[0, 1 : int(step.starts[0]) // PAGE]
            return step.with_new_pages(pages[~self._is_made[pages]])
        rows, first = np.unique(step.rows[budgets > 0], return_index=True)
        starts = step.starts[budgets > 0][first]
        of_rows = zip(rows.tolist(), starts.tolist(), strict=True)
        seen = [step.tables[row, 1 : start // PAGE] for row, start in of_rows]
        found = np.unique(np.concatenate(seen)) if seen else np.zeros(0, np.int32)
        return step.with_new_pages(found[~self._is_made[found]])

    def note(self, step: Step) -> None:
        """Note that a step has run."""
        if step.new_pages is not None:
            self._is_made[step.new_pages] = True

    def forget(self, pages: Sequence[int]) -> None:
        """Forget pages whose keys change."""
        for page in pages:
            self._is_made[page] = False
