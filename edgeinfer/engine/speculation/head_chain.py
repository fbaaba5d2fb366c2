"""Several MTP blocks of one file as a draft model: each guesses one token further than the block before it.

In: the blocks, opened beside their model. Out: a `DraftModel` whose first token comes from the first block, which reads
the model's rows, the second from the next block, which reads the rows of the first, and so on; the last one goes on
with its own. Each block has a cache of its own, in which every token stands with the row that it was trained with: that
of the block before it. Tokens that were guessed stay there only if the model chose them too. Where a text goes back,
later blocks have a gap of a token or two, as the row before it is known to nobody any more. Source: DeepSeek-V3 (arXiv
2412.19437), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.engine.requests.drafting import CachedText, RowReader
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.speculation.draft_followers import Follower, TextPart
from edgeinfer.engine.speculation.draft_model import DraftModel, FollowedText
from edgeinfer.engine.speculation.drafters import Drafter
from edgeinfer.engine.speculation.head_model import Head, HeadFollower
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.library import KernelLibrary


class HeadChain(DraftModel):
    """Blocks of one file, for all sessions. Close it."""

    def __init__(self, blocks: Sequence[Head], executor: SequenceEvaluator) -> None:
        """`executor`: that of the first block."""
        super().__init__(executor, blocks[0].fingerprint, 0, blocks[0].close)
        self._blocks, self._n_rounds = blocks, 0

    @property
    def drafter(self) -> Drafter:
        """What proposes its guesses."""
        return self._blocks[0].drafter

    def prepare(self, library: KernelLibrary) -> None:
        """Use the loops of a library."""
        for block in self._blocks:
            block.prepare(library)

    def session(self) -> Follower:
        """What the blocks have of one more session's text."""
        later: HeadFollower | None = None
        followers: list[HeadFollower] = []
        for block in reversed(self._blocks):
            later = block.block_session(later)
            followers.insert(0, later)
        return ChainFollower(followers)

    def read(self, texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        """As `DraftModel.read`, with the first block."""
        self._n_rounds = 0
        return self._noted(self._blocks[0], self._blocks[0].read(texts, ahead))

    def go_on(
        self, texts: Sequence[FollowedText], tokens: Sequence[int], ahead: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """As `DraftModel.go_on`, with the next block, or the last one again."""
        self._n_rounds += 1
        block = self._blocks[min(self._n_rounds, len(self._blocks) - 1)]
        return self._noted(block, block.go_on(texts, tokens, ahead))

    def take_notices(self) -> tuple[str, ...]:
        """Notices of all blocks since the last call."""
        return tuple(notice for block in self._blocks for notice in block.take_notices())

    def close(self) -> None:
        """Free the memory; may be called twice."""
        for block in reversed(self._blocks):
            block.close()

    def _noted(self, block: Head, found: list[int | None]) -> list[int | None]:
        """Note how many tokens a block has run."""
        self.n_run = block.n_run
        self.n_passes += self.n_run > 0
        return found


class ChainFollower:
    """What the blocks have of one session's text, in turn."""

    def __init__(self, blocks: Sequence[HeadFollower]) -> None:
        self._blocks = blocks
        self._block = blocks[0]
        self._text: list[int] = []
        """The text of this pass, with what was guessed;"""
        self._n_guessed = 0
        """and how many tokens of it were."""

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """The sequence of the block whose turn it is."""
        return self._block.members

    @property
    def row_reader(self) -> RowReader:
        """What is given the model's rows."""
        return self._blocks[0]

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue; what was read of the last one stays as far as the two agree."""
        for block in self._blocks:
            block.begin(text)

    def reach(self, text: CachedText | None, most: int) -> int:
        """As many as asked for, whatever the text."""
        return most

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The next part of a text for the first block."""
        self._text, self._n_guessed, self._block = list(history), 0, self._blocks[0]
        for block in self._blocks[1:]:
            block.trim(self._text)
        return self._block.unread(history, most, ahead)

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """The part of the text up to a guessed token that the next block has not read; with the last, that token."""
        self._text.append(token)
        self._n_guessed += 1
        if self._n_guessed >= len(self._blocks):
            return self._block.after(token, most, ahead)
        self._block = self._blocks[self._n_guessed]
        return self._block.unread(self._text, most, ahead, self._n_guessed)

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Keep these tokens in the cache of the block whose turn it is."""
        self._block.keep(batch, path)

    def keep_row(self, row: Floats) -> None:
        """Take the block's own row of the last token."""
        self._block.keep_row(row)

    def finish(self) -> None:
        """Do nothing: what was read stays."""

    def leave_out(self) -> None:
        """Leave this text out of the block whose turn it is."""
        self._block.leave_out()

    def close(self) -> None:
        """Free the memory."""
        for block in self._blocks:
            block.close()
