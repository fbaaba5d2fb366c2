"""A chain of operations that each wait for the last one: its time says how fast this core's clock runs now.

Source: Agner Fog's instruction tables; a multiplication takes 3 cycles and an exclusive or 1 on x86-64 since 2013 and
on ARM's large cores. The NumPy twin is the loop itself.
"""

from __future__ import annotations

from edgeinfer.jit.code import CodeSource, CompiledFunction

LINK_CYCLES = 4
CHAIN = CompiledFunction("chain", CodeSource("edgeinfer.jit", "clock", "chain"), 1)


def chain(links: int) -> int:
    """The result of a chain of `links` links of LINK_CYCLES cycles each."""
    value = links
    for _ in range(links):
        value = (value ^ 1442695040888963407) * 6364136223846793005
    return value
