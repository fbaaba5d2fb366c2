"""Ways to keep one of several answers, one file each: the file name is the name of the pick, `PICK` the entry."""

from __future__ import annotations

from edgeinfer.registry import Registry
from edgeinfer.scheduling.several.samples import Pick

PICKS: Registry[Pick] = Registry("edgeinfer.scheduling.several.picks", "PICK", "pick")
