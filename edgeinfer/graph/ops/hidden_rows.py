"""Hidden rows of another model that come with the tokens of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import Access, Cost, Op, OpContext


@dataclass(frozen=True, slots=True)
class HiddenRows(Op):
    """out[t] = columns `first` to `first + width` of the hidden row that comes with token t (`Batch.hidden`).

    Needed for trained heads, which guess from what the model computed for the token before: DeepSeek-V3's multi-token
    prediction (arXiv 2412.19437), EAGLE-3 (arXiv 2503.01840).
    """

    out: str
    width: int
    first: int = 0

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (), (Access(self.out, self.width),)

    @property
    def cost(self) -> Cost:
        return Cost(n_elements=self.width)

    def evaluate(self, context: OpContext) -> None:
        hidden = context.step.batch.hidden
        if hidden is None:
            raise ValueError("the tokens of a head need the hidden rows of a model")
        context.values[self.out] = hidden[:, self.first : self.first + self.width].copy()


OP = HiddenRows
