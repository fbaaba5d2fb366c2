"""A trained head inside the model's file (multi-token prediction: DeepSeek-V3, arXiv 2412.19437).

As `draft_model`, whose tables it has: `engine.speculation.heads` runs the head. Registered only if there is one.
"""

from __future__ import annotations

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, loop
from edgeinfer.engine.speculation.drafters.draft_model import Chains
from edgeinfer.engine.speculation.records import STANDINGS

DRAFTER = Drafter(draft_sources=(DraftSource("trained_head", loop("chain", "speak"), STANDINGS),), open=Chains)
