"""Several answers of which one is kept, as a JSON object.

In: answers that are over. Out: a record; keys may be added, never renamed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.several.several import Several
    from edgeinfer.scheduling.several.forking import Fork


def several_record(several: Several, pick: str) -> dict[str, object]:
    """Several answers in JSON; keys may be added, never renamed. Numbers of answers begin at 0."""
    choice = several.choice
    assert choice is not None
    return {
        "pick": pick,
        "kept": choice.number,
        "reason": choice.reason,
        "n_generated": several.n_generated,
        "seconds": several.seconds,
        "answers": [
            _sample_record(answer, said, fork, early=number in choice.left)
            for number, (answer, said, fork) in enumerate(zip(several.answers, choice.votes, choice.forks, strict=True))
        ],
    }


def _sample_record(answer: TextStream, said: object, fork: Fork | None, *, early: bool) -> dict[str, object]:
    stats = answer.stats
    assert stats is not None
    return {
        "text": answer.content,
        "reasoning": answer.reasoning,
        "vote": None if said is None else str(said),
        "n_generated": stats.n_generated,
        "forked_from": None if fork is None else {"answer": fork.parent, "n_tokens": fork.n_tokens},
        "finish_reason": stats.finish_reason,
        "ended_early": early,
        "seed": stats.seed,
    }
