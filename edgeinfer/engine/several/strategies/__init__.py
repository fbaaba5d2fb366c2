"""Ways to lead several answers, one file each: the file name is the name of the strategy, `STRATEGY` the entry."""

from __future__ import annotations

from edgeinfer.engine.several.leading import Strategy
from edgeinfer.registry import Registry

STRATEGIES: Registry[Strategy] = Registry("edgeinfer.engine.several.strategies", "STRATEGY", "way to lead answers")
