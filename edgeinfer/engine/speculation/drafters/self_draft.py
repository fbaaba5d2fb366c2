"""The model itself, attending to a part of a long text (TriForce, arXiv 2404.11912; MagicDec, arXiv 2408.11049).

As `draft_model`, whose tables it has: `engine.speculation.self_draft` runs the model. Registered only where it can.
"""

from __future__ import annotations

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, loop
from edgeinfer.engine.speculation.drafters.draft_model import Chains
from edgeinfer.engine.speculation.records import STANDINGS

DRAFTER = Drafter(draft_sources=(DraftSource("self", loop("chain", "speak"), STANDINGS),), open=Chains)
