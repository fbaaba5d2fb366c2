"""The first look at a machine: a short probe after the first answer, while a person reads it.

In: a loaded model. Out: a profile that is kept, once per machine. Silent; whoever pipes text through a command is not
kept waiting for it: it happens in a terminal alone. `edgeinfer probe` measures the rest.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM


def look_once(llm: LLM) -> threading.Thread | None:
    """Measure in a thread of its own, if nobody did before; None where there is nothing to do."""
    from edgeinfer.app.machine_profile import kept_profile
    from edgeinfer.scheduling.profile import CPU

    if llm.facts.device != CPU or not llm.policy.idle_work or not sys.stderr.isatty() or kept_profile() is not None:
        return None
    thread = threading.Thread(target=_look, args=(llm.work.formats,), name="edgeinfer-probe", daemon=True)
    thread.start()
    return thread


def _look(formats: tuple[str, ...]) -> None:
    from edgeinfer.app.machine_profile import profile_or_short_probe

    try:
        profile_or_short_probe(formats[:1])
    except EdgeInferError:  # a machine that cannot be measured answers all the same
        return
