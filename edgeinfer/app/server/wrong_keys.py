"""Slows down who guesses the key: how many wrong ones an address has sent, and how long its keys are not looked at.

In: addresses of clients, and whether their key was right. Out: seconds to wait. The first wrong keys cost nothing, then
each doubles the wait, up to a minute. Addresses that have sent the right key within a day, and those of this
computer, do not wait with the right one, whoever else guesses there: only their wrong keys are refused as too many.
What is remembered is limited; the address that was silent for longest is forgotten first. Knows no keys.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

LOG = logging.getLogger("edgeinfer.server")
FREE_KEYS = 10
"""Wrong keys of an address before it has to wait."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
FORGOTTEN_S = 900.0
"""Seconds without a wrong key after which an address begins anew."""
TRUSTED_S = 86400.0
"""Seconds for which an address that sent the right key does not wait with it."""
MOST_ADDRESSES = 10_000


@dataclass(slots=True)
class _Guesses:
    """Wrong keys of an address. `until_s`: when the wait after the last one that was counted ends."""

    n_wrong: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class WrongKeys:
    """Counts wrong keys by address. Used in the event loop alone."""

    def __init__(self) -> None:
        self._guesses: OrderedDict[str, _Guesses] = OrderedDict()
        self._trusted: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, client: str | None) -> float:
        """Seconds for which keys of this address are not looked at; 0: they are. `client`: None for a local socket."""
        address = network_of(client)
        if address is None or time.monotonic() - self._trusted.get(address, -TRUSTED_S) < TRUSTED_S:
            return 0.0
        return self._left_s(address)

    def wrong(self, client: str | None) -> float:
        """Count a wrong key; returns the seconds to wait before the next, 0 for the first ones."""
        address, now_s = network_of(client) or "", time.monotonic()
        guesses = self._guesses.setdefault(address, _Guesses())
        if now_s - guesses.last_s > FORGOTTEN_S:
            guesses.n_wrong, guesses.until_s = 0, 0.0
        guesses.last_s = now_s
        self._guesses.move_to_end(address)
        if len(self._guesses) > MOST_ADDRESSES:
            self._guesses.popitem(last=False)
        if now_s >= guesses.until_s:  # one in a wait does not make it longer
            guesses.n_wrong += 1
            if guesses.n_wrong > FREE_KEYS:
                doublings = min(guesses.n_wrong - FREE_KEYS - 1, 16)
                guesses.until_s = now_s + (wait_s := min(FIRST_WAIT_S * 2**doublings, LONGEST_WAIT_S))
                name = client or "a local client"
                LOG.warning("%s sent more than %d wrong keys; it waits for %.0f s", name, FREE_KEYS, wait_s)
        return max(0.0, guesses.until_s - now_s)

    def right(self, client: str | None) -> None:
        """Note that an address has sent the right key."""
        address = network_of(client)
        if address is None:
            return
        self._trusted[address] = time.monotonic()
        self._trusted.move_to_end(address)
        if len(self._trusted) > MOST_ADDRESSES:
            self._trusted.popitem(last=False)

    def _left_s(self, address: str) -> float:
        guesses = self._guesses.get(address)
        return 0.0 if guesses is None else max(0.0, guesses.until_s - time.monotonic())


def network_of(client: str | None) -> str | None:
    """What an address is counted as: of IPv6, its first 64 bits, as everybody has so many; None for this computer."""
    if client is None:
        return None
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:  # what a proxy says, which may be anything
        return client[:64]
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))
    return str(address)
