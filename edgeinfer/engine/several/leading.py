"""Leading several answers: what a strategy is, what it sees of the answers, and what it may do with them.

In: the name of a strategy with its options. Out: a plan, which begins as a `Leader` for one request. A leader looks
after every pass; it has answers forked from others, and ends those that are not wanted. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Request
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
    from edgeinfer.models.text import Tokenizer

Potential = Callable[[str], float]
"""How good the beginning of an answer is, as a number from 0 on; twice as much is kept twice as often."""


class LedAnswers(Protocol):
    """The answers as a leader sees them. Numbers are places among them, from 0 on."""

    @property
    def answers(self) -> tuple[TextStream, ...]:
        """All answers, over or not."""
        ...

    @property
    def ended(self) -> Collection[int]:
        """Those that are over, all of whose text was taken."""
        ...

    def beginning(self, number: int, n_tokens: int) -> str:
        """The text of the first tokens of an answer, thoughts included."""
        ...

    def fork(self, number: int, n_tokens: int, more: Sequence[TokenLogprobs] = ()) -> int | None:
        """Begin one more answer with the first tokens of another and `more`, from the next pass on; returns its number.

        None if there is no room for more tokens, `more` is not allowed there, or all were stopped.
        """
        ...

    def drop(self, number: int) -> None:
        """End an answer that is not wanted; it is not chosen."""
        ...

    def weigh(self, number: int, weight: float) -> None:
        """Let an answer stand for so many."""
        ...

    def expect(self, n: int) -> None:
        """Say how many answers there may be in all."""
        ...


class Leader(Protocol):
    """Leads the answers to one request."""

    def look(self, answers: LedAnswers) -> None:
        """Called when something is new, before one is picked, until one is."""
        ...


class LeadPlan(Protocol):
    """A strategy with its options."""

    @property
    def n_logprobs(self) -> int | None:
        """How many likely tokens it must know at each token, with log probabilities; None: none, and no others."""
        ...

    @property
    def reads_entropy(self) -> bool:
        """Whether it must know how sure the model was of each token."""
        ...

    @property
    def reads_forks(self) -> bool:
        """Whether it must know these of forks, too."""
        ...

    @property
    def draws(self) -> bool:
        """Whether answers differ only because their tokens are drawn."""
        ...

    def n_first(self, n: int) -> int:
        """How many of `n` answers are written from their start."""
        ...

    def begin(self, n: int, request: Request, tokenizer: Tokenizer) -> Leader | None:
        """Lead the answers to a request; None if nothing is to do. Raises BadSetting where it cannot work."""
        ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to lead several answers.

    plan  makes a plan of options; a dataclass, whose fields are numbers that can be written in a text
    help  one line for people
    """

    plan: Callable[..., LeadPlan]
    help: str


def planned(strategies: Callable[[str], Strategy], lead: str, potential: Potential | None) -> LeadPlan:
    """The plan that a text names: NAME, or NAME:OPTION=NUMBER,OPTION=NUMBER. Raises BadSetting, UnknownKey.

    `potential`: how good beginnings of answers are, for a strategy that asks.
    """
    name, colon, rest = lead.partition(":")
    strategy = strategies(name)
    known: dict[str, Any] = {each.name: each.default for each in fields(strategy.plan)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    if potential is not None:
        if "potential" not in known:
            raise BadSetting(f"lead {name} takes no potential; particles does")
        given["potential"] = potential
    numbers = {key: type(value) for key, value in known.items() if value is not MISSING and value is not None}
    for part in rest.split(",") if colon else ():
        key, equals, written = part.partition("=")
        if key not in numbers or not equals:
            ways = f"its options are: {', '.join(numbers)}" if numbers else "it has no options"
            raise BadSetting(f"lead {name} cannot have {part!r}; {ways}, as in {name}:OPTION=NUMBER")
        try:
            given[key] = numbers[key](written)
        except ValueError:
            whole = "a whole number" if numbers[key] is int else "a number"
            raise BadSetting(f"lead {name}: {key} cannot be {written!r}; it is {whole}") from None
    return strategy.plan(**given)
