"""The first look at a machine, after the first answer, while a person reads it: what that answer did without.

In: a loaded model. Out: what drafts is compiled, the fastest device is remembered and a profile is kept, once. Whoever
pipes text through a command is not kept waiting for it: it happens in a terminal alone. `edgeinfer probe` measures the
rest.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.racing.afterwards import Compared
    from edgeinfer.steps import Progress

LEAVE = "; Ctrl-C leaves"


def looks_after_answers() -> bool:
    """Whether a person sits here, who reads an answer while the machine is looked at."""
    return sys.stderr is not None and sys.stderr.isatty()


def look_once(
    llm: LLM, progress: Progress | None = None, found: Callable[[Compared], None] | None = None
) -> threading.Thread | None:
    """Do in a thread of its own what nobody did before; None where there is nothing to do.

    `progress` is told how far that is, and `found` what came of the comparison.
    """
    from edgeinfer.app.machine_profile import kept_profile
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
    except (EdgeInferError, OSError):  # the model was closed, or answers as it did
        return False
    return True


def _compare(llm: LLM, progress: Progress | None, found: Callable[[Compared], None] | None) -> bool:
    """Whether nobody wanted an answer meanwhile."""
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
    from edgeinfer.app.machine_profile import profile_or_short_probe

    _leavable(progress)("measuring this machine, once", 0, 0)
    try:
        profile_or_short_probe(llm.telemetry.work.formats[:1])
    except EdgeInferError:  # a machine that cannot be measured answers all the same
        return False
    return True
