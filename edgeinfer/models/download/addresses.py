"""Which addresses of the internet anybody may ask, and which are this computer's, or those of its network.

In: IP addresses and names of hosts. Out: whether they are public. Connects to nothing.
"""

from __future__ import annotations

import ipaddress
import socket

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST, SIX_TO_FOUR = ipaddress.IPv6Network("2000::/3"), ipaddress.IPv6Network("2002::/16")


def is_public(text: str) -> bool:
    """Whether an IP address is one of a computer that anybody may ask: no private, local or otherwise special one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with a scope, as link-local addresses have it
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not (address.is_multicast or address.is_reserved)
    if address in NAT64:
        return is_public(str(ipaddress.IPv4Address(address.packed[-4:])))
    return address in GLOBAL_UNICAST and address not in SIX_TO_FOUR and address.is_global


def is_inside(host: str, *, resolves: bool) -> bool:
    """Whether a host has an address that is not public. `resolves`: whether to ask what a name means; a proxy may."""
    try:
        places = socket.getaddrinfo(host, None, flags=0 if resolves else socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return host.casefold().rstrip(".") == "localhost"
    return any(not is_public(str(place[4][0])) for place in places)
