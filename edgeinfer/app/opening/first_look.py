"""One-time background work after the first answer, while the user reads it.

In: a loaded model. Out: compiled draft kernels, a remembered choice of the fastest device and a saved profile, once
each. Runs only in a terminal, so that commands in a pipe are not delayed. `edgeinfer probe` measures the rest.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.opening.comparison import Compared
    from edgeinfer.steps import Progress

LEAVE = "; Ctrl-C leaves"


def looks_after_answers() -> bool:
    """Whether stderr is a terminal, so that a user may be reading the answer during background work."""
    return sys.stderr is not None and sys.stderr.isatty()


def look_once(
    llm: LLM, progress: Progress | None = None, found: Callable[[Compared], None] | None = None
) -> threading.Thread | None:
    """Start a thread for whatever has not been done yet; None if there is nothing to do.

    `progress` receives the progress of that work, and `found` the result of the device comparison.
    """
    from edgeinfer.app.plans.measured import kept_profile
    from edgeinfer.scheduling.machine.profile import CPU

    if not llm.telemetry.policy.idle_work or not looks_after_answers():
        return None
    compares = llm.comparison is not None and llm.comparison.is_due
    probes = llm.info.device == CPU and kept_profile() is None
    wanted = (_draft, llm.later_drafts is not None), (_compare, compares), (_probe, probes)
    tasks = [task for task, is_wanted in wanted if is_wanted]
    if not tasks:
        return None

    def look() -> None:
        for task in tasks:
            if not task(llm, progress, found):
                return

    thread = threading.Thread(target=look, name="edgeinfer-look", daemon=True)
    thread.start()
    return thread


def _draft(llm: LLM, progress: Progress | None, found: Callable[[Compared], None] | None) -> bool:
    try:
        llm.begin_drafting(_leavable(progress))
    except (EdgeInferError, OSError):  # the model was closed, or goes on without drafts
        return False
    return True


def _compare(llm: LLM, progress: Progress | None, found: Callable[[Compared], None] | None) -> bool:
    """Run the comparison; return whether it was completed, without a request for an answer in between."""
    assert llm.comparison is not None
    compared = llm.comparison.run(_leavable(progress))
    if compared is not None and found is not None:
        found(compared)
    return not llm.comparison.is_due


def _leavable(progress: Progress | None) -> Progress:
    """Progress that says how to leave."""

    def told(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(what + LEAVE, done, total)

    return told


def _probe(llm: LLM, progress: Progress | None, found: Callable[[Compared], None] | None) -> bool:
    from edgeinfer.app.plans.measured import profile_or_short_probe

    _leavable(progress)("measuring this machine, once", 0, 0)
    try:
        profile_or_short_probe(llm.telemetry.work.formats[:1])
    except EdgeInferError:  # answers do not depend on the measurement
        return False
    return True
