"""How much of the next pass each request gets, and in which order waiting requests begin.

In: the tokens each request needs evaluated, and measured seconds of passes by their number of tokens; priorities and
waits. Out: tokens by request; ranks. Continuous batching with chunked prompts (Sarathi-Serve, Agrawal et al., arXiv
2403.02310): decoding requests continue in every pass, and prompts fill what is left of it. Here the limit is time:
while interactive requests are decoding, a pass takes at most SLOWED times as long as for those alone, so that
background work slows down instead of them. Passes become slower as contexts grow, so recent ones count most. Knows no
texts and no memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from edgeinfer.errors import BadSetting

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Lower bounds of the size classes."""
RECENT = 1 / 8
"""Weight of a new time in a class's moving average."""
MOST_STRANGE = 4.0
"""A pass that takes this many times the expected time was disturbed, and counts as exactly this many times."""
SLOWED = 1.7
"""Limit on a pass's time, background answers included, as a multiple of that for interactive decoding alone."""
STALL_S = 0.04
"""Time a pass may take in any case when it reads an interactive prompt: a stall too short to notice."""
CHUNK_S = 0.1
"""Time a pass may take without decoding interactive answers: how long a new interactive request has to wait;"""
CALM_S = 30.0
"""After this long without any, there is nobody to wait for: short passes read a prompt more slowly,"""
CALM_CHUNK_S, CALM_SLOWED = 0.5, 4.0
"""so a pass may take this long, or this many times as long as one of a single token."""
FIRST_CHUNK = 64
"""Tokens of a prompt read in a pass while the time of passes is unknown."""
PATIENCE = 8
"""Most passes in a row without a background answer;"""
LEAST_CHUNK = 8
"""the next one then reads this much of its prompt, however long that takes."""
Priority = Literal["interactive", "background"]
AGED_S = 20.0
"""A background answer that has waited this long counts as interactive."""


class Pace:
    """Seconds of passes by size; None before any was seen."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # by class: mean tokens and seconds
        self._sizes: list[float] = []
        self._seconds: list[float] = []
        self._is_drawn = True

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Note the time of a pass."""
        kind = SIZES[bisect_right(SIZES, n_tokens) - 1]
        known = self._seen.get(kind)
        if known is None:
            self._seen[kind] = float(n_tokens), seconds
        else:
            mean, usual_s = known
            seconds = min(seconds, MOST_STRANGE * usual_s)
            self._seen[kind] = mean + (n_tokens - mean) * RECENT, usual_s + (seconds - usual_s) * RECENT
        self._is_drawn = False

    def _draw(self) -> None:
        points = sorted(self._seen.values())
        self._sizes = [size for size, _ in points]
        self._seconds = []
        for _, each_s in points:  # no size takes longer than a larger one
            self._seconds.append(max(each_s, self._seconds[-1] if self._seconds else 0.0))
        self._is_drawn = True

    def seconds(self, n_tokens: int) -> float | None:
        """Predicted seconds of a pass: linear between the sizes seen, proportional beyond them."""
        if not self._is_drawn:
            self._draw()
        sizes, seconds = self._sizes, self._seconds
        if not sizes:
            return None
        place = bisect_left(sizes, n_tokens)
        if place == len(sizes):
            return seconds[-1] * n_tokens / sizes[-1]
        if place == 0 or sizes[place] == n_tokens:
            return seconds[place]
        share = (n_tokens - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])

    def most_tokens(self, limit_s: float, at_most: int) -> int:
        """The most tokens, up to `at_most`, in a pass of `limit_s` seconds; `at_most` while nothing is known."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            seconds = self.seconds(middle)
            low, high = (middle, high) if seconds is None or seconds <= limit_s else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class Wish:
    """An answer's request for the next pass.

    n_missing: tokens to evaluate before its next one is known; 1: it is decoding. last_pass: number of the last pass it
    took part in. n_silent: how many of the missing tokens need no output, None: all but the last. n_before: tokens
    before these. n_least: how many a pass must have, if it has any. group: of answers whose reader waits for all of
    them, so that none slows the others; 0: it has none. Wishes are in order of arrival.
    """

    key: int
    is_interactive: bool
    n_missing: int
    last_pass: int
    n_silent: int | None = None
    n_before: int = 0
    n_least: int = 1
    group: int = 0

    def n_outputs(self, n_tokens: int) -> int:
        """Outputs to count for so many of its tokens; 1 also while a prompt that needs none is read."""
        return 1 if self.n_silent is None else max(1, n_tokens - self.n_silent)

    def most_tokens(self, n_outputs: int) -> int:
        """The most tokens that so many outputs are enough for."""
        if n_outputs <= 0:
            return 0
        return self.n_missing if self.n_silent is None else min(self.n_missing, self.n_silent + n_outputs)

    @property
    def decodes(self) -> bool:
        return self.n_missing <= 1


@dataclass(frozen=True, slots=True)
class PassRoom:
    """Limits of a pass: tokens and outputs; `number` is the pass's own. `n_drafts`: tokens that prompts leave free.

    `block`: prompts are read in blocks of so many tokens, at multiples of it; 0: in parts of any size. `is_calm`:
    there was no interactive answer for CALM_S.
    """

    number: int
    max_tokens: int
    max_outputs: int
    n_drafts: int = 0
    block: int = 0
    is_calm: bool = False


def allot(wishes: Sequence[Wish], pace: Pace, room: PassRoom) -> dict[int, int]:
    """Tokens of the next pass by answer; answers without any wait. At least one gets some."""
    if len(wishes) == 1:
        return {wishes[0].key: min(max(1, wishes[0].most_tokens(room.max_outputs)), room.max_tokens)}
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
    """Sort key: interactive answers first, then the answer whose last pass is longest ago."""
    return not wish.is_interactive, wish.last_pass


def _allot_prompts(wishes: Sequence[Wish], pace: Pace, room: PassRoom, given: dict[int, int]) -> None:
    """Fill the pass with prompts: interactive ones first, then in order of arrival.

    Before that, the first prompt of either kind gets a small chunk if it was left out for long enough. An interactive
    prompt leaves no room to drafts of background answers.
    """
    is_watched = any(wish.is_interactive and wish.decodes for wish in wishes)
    prompts = sorted((wish for wish in wishes if not wish.decodes), key=lambda each: not each.is_interactive)
    foremost = {wish.is_interactive: wish for wish in reversed(prompts)}
    left_out = [wish for wish in foremost.values() if room.number - wish.last_pass > PATIENCE]
    if left_out:
        _add(given, wishes, min(left_out, key=lambda each: each.last_pass), LEAST_CHUNK, room)
    kinds = {(wish.is_interactive, wish.group) for wish in prompts}
    most = {kind: _most_tokens(wishes, pace, room, for_prompt=kind[0], group=kind[1]) for kind in kinds}
    for wish in prompts:
        n_left = most[wish.is_interactive, wish.group] - sum(given.values())
        own_room = room if is_watched or not wish.is_interactive else replace(room, n_drafts=0)
        _add(given, wishes, wish, n_left if given else max(n_left, LEAST_CHUNK), own_room)


def _add(given: dict[int, int], wishes: Sequence[Wish], wish: Wish, most: int, room: PassRoom) -> None:
    """Give a prompt at most this many more tokens, if the pass has room."""
    has = given.get(wish.key, 0)
    others = sum(each.n_outputs(given[each.key]) for each in wishes if each is not wish and each.key in given)
    n_more = wish.most_tokens(room.max_outputs - others) - has
    n_left = room.max_tokens - room.n_drafts - sum(given.values())
    chunk = min(n_more, most, n_left)
    if room.block and 0 < chunk < n_more and wish.n_silent is None:
        chunk = _in_blocks(chunk, wish.n_before + has, n_more, n_left, room.block)
    if 0 < chunk < wish.n_least - has:
        chunk = _together(wish, has, room.max_tokens - sum(given.values()), n_more)
    if chunk > 0:
        given[wish.key] = has + chunk


def _together(wish: Wish, has: int, n_left: int, n_more: int) -> int:
    """As many more tokens as a prompt must have in one pass, however long that takes and if there are no drafts."""
    n_missing = wish.n_least - has
    return n_missing if n_missing <= min(n_left, n_more) else 0


def _in_blocks(n_tokens: int, n_before: int, n_more: int, n_left: int, block: int) -> int:
    """So many tokens of a prompt, fewer, or some more, so that they end with a block; 0 if the pass has no room.

    n_more: tokens that the prompt has left, of which the last ones may fill no block; n_left: those that the pass has.
    """
    n_over = (n_before + n_tokens) % block
    if not n_over or n_tokens > n_over:
        return n_tokens - n_over
    n_up = n_tokens + block - n_over
    if n_up > n_more:
        return n_tokens
    return n_up if n_up <= n_left else 0


def _most_tokens(wishes: Sequence[Wish], pace: Pace, room: PassRoom, *, for_prompt: bool, group: int = 0) -> int:
    """Total tokens the pass may have; `for_prompt`: while reading an interactive prompt, of this `group`."""
    decoding = [wish for wish in wishes if wish.is_interactive and wish.decodes]
    n_watched = sum(not group or wish.group != group for wish in decoding)
    if not n_watched and any(wish.is_interactive for wish in wishes):
        return room.max_tokens
    usual_s = pace.seconds(max(1, n_watched))
    if usual_s is None:
        return FIRST_CHUNK
    if n_watched:
        limit_s = max(STALL_S if for_prompt else 0.0, SLOWED * usual_s)
    elif room.is_calm:
        limit_s = max(CALM_CHUNK_S, CALM_SLOWED * usual_s)
    else:
        limit_s = max(CHUNK_S, SLOWED * usual_s)
    return pace.most_tokens(limit_s, room.max_tokens)


def checked(priority: Priority) -> Priority:
    """Check a priority. Raises BadSetting for an unknown one."""
    if priority not in get_args(Priority):
        raise BadSetting(f"priority cannot be {priority!r}: it must be {' or '.join(get_args(Priority))}")
    return priority


def rank(priority: Priority, waited_s: float) -> int:
    """Lower ranks go first; within a rank, first come, first served."""
    return 0 if priority == "interactive" or waited_s >= AGED_S else 1
