"""How much of the next pass each answer gets, and in which order waiting answers begin.

In: what answers want evaluated, and what passes take; priorities and waits. Out: tokens by answer; ranks. Continuous
batching with chunked prompts (Sarathi-Serve, Agrawal et al., arXiv 2403.02310): whoever is decoding goes on in every
pass, prompts fill what is left of it. Here what is left is time: while answers are watched as they grow, a pass takes
at most SLOWED times what it takes for those alone, so background work slows down rather than they do. Knows no tokens
and no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.serving.pace import Pace

SLOWED = 1.7
"""Times longer that a pass may take than for those alone that somebody watches, background answers included."""
STALL_S = 0.04
"""What a pass may take for the sake of another prompt that somebody waits for: longer, but nobody sees it."""
CHUNK_S = 0.1
"""What a pass may take where nobody watches: how long somebody who comes then has to wait."""
FIRST_CHUNK = 64
"""Tokens of a prompt that are read in a pass where it is not known what that takes."""
PATIENCE = 8
"""Passes that a background answer is left out of in a row, at most;"""
LEAST_CHUNK = 8
"""so much of its prompt is read in the next one, however long that takes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What an answer wants of the next pass.

    n_missing: tokens to evaluate before its next one is known; 1: it is decoding. last_pass: number of the pass it took
    part in last. Wishes are in order of arrival.
    """

    key: int
    is_interactive: bool
    n_missing: int
    last_pass: int

    @property
    def decodes(self) -> bool:
        return self.n_missing <= 1


@dataclass(frozen=True, slots=True)
class PassRoom:
    """What a pass may have: tokens and outputs; `number` is its own."""

    number: int
    max_tokens: int
    max_outputs: int


def allot(wishes: Sequence[Wish], pace: Pace, room: PassRoom) -> dict[int, int]:
    """Tokens of the next pass by answer; those without any wait. At least one gets some."""
    if len(wishes) == 1:
        return {wishes[0].key: min(max(1, wishes[0].n_missing), room.max_tokens)}
    given: dict[int, int] = {}
    most, most_calm = min(room.max_tokens, room.max_outputs), _most_tokens(wishes, pace, room, for_prompt=False)
    for wish in sorted((wish for wish in wishes if wish.decodes), key=_turn):
        if len(given) == most:
            break
        left_out = room.number - wish.last_pass > PATIENCE
        if wish.is_interactive or left_out or len(given) < most_calm:
            given[wish.key] = 1
    _allot_prompts(wishes, pace, room, given)
    return given


def _turn(wish: Wish) -> tuple[bool, int]:
    """Interactive answers first, then those that took part longest ago."""
    return not wish.is_interactive, wish.last_pass


def _allot_prompts(wishes: Sequence[Wish], pace: Pace, room: PassRoom, given: dict[int, int]) -> None:
    """Fill the pass with prompts: those that somebody waits for first, then in order of arrival.

    Before all of them the foremost one of either kind has a little where it was left out for long enough.
    """
    prompts = sorted((wish for wish in wishes if not wish.decodes), key=lambda each: not each.is_interactive)
    foremost = {wish.is_interactive: wish for wish in reversed(prompts)}
    left_out = [wish for wish in foremost.values() if room.number - wish.last_pass > PATIENCE]
    if left_out:
        _add(given, min(left_out, key=lambda each: each.last_pass), LEAST_CHUNK, room)
    most = {kind: _most_tokens(wishes, pace, room, for_prompt=kind) for kind in foremost}
    for wish in prompts:
        n_left = most[wish.is_interactive] - sum(given.values())
        _add(given, wish, n_left if given else max(n_left, LEAST_CHUNK), room)


def _add(given: dict[int, int], wish: Wish, most: int, room: PassRoom) -> None:
    """Give a prompt so many tokens more at most, where there is room in the pass."""
    has = given.get(wish.key, 0)
    chunk = min(wish.n_missing - has, most, room.max_tokens - sum(given.values()))
    if chunk > 0 and (has or len(given) < room.max_outputs):
        given[wish.key] = has + chunk


def _most_tokens(wishes: Sequence[Wish], pace: Pace, room: PassRoom, *, for_prompt: bool) -> int:
    """Tokens that the pass may have in all; `for_prompt`: of one that somebody waits for."""
    n_watched = sum(wish.is_interactive and wish.decodes for wish in wishes)
    if not n_watched and any(wish.is_interactive for wish in wishes):
        return room.max_tokens
    usual_s = pace.seconds(max(1, n_watched))
    if usual_s is None:
        return FIRST_CHUNK
    least_s = CHUNK_S if not n_watched else STALL_S if for_prompt else 0.0
    return pace.most_tokens(max(least_s, SLOWED * usual_s), room.max_tokens)


Priority = Literal["interactive", "background"]

AGED_S = 20.0
"""A background answer that has waited so long counts as interactive."""


def checked(priority: Priority) -> Priority:
    """A priority. Raises BadSetting for one that there is not."""
    if priority not in get_args(Priority):
        raise BadSetting(f"priority cannot be {priority!r}: it must be {' or '.join(get_args(Priority))}")
    return priority


def rank(priority: Priority, waited_s: float) -> int:
    """Lower ranks go first; of equal ones the one that came first."""
    return 0 if priority == "interactive" or waited_s >= AGED_S else 1
