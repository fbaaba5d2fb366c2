"""Frees what is left of closed models: their weights and caches are freed at once, their vocabularies are garbage.

The parts of a model refer to each other, so Python's collector has to find them; they are few objects of tens of
megabytes, and a program that makes little else may not collect for hours. With two models by turns a server grew by
60 MB at each switch, up to 1.2 GB.
"""

from __future__ import annotations

import gc
import threading

from edgeinfer.jit.memory import trim_heap

AFTER_S = 1.0
"""Until then those who closed a model have forgotten it."""
_ONE_AT_A_TIME = threading.Lock()


def free_closed_models() -> None:
    """Free them now. Holds up all of Python for about 0.1 s.

    Objects that were frozen, such as all that a program had made by the end of its start, are looked through too, since
    a closed model may be among them, and frozen again.
    """
    with _ONE_AT_A_TIME:  # another one would find nothing frozen, and leave it so
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.collect()
        if is_frozen:
            gc.freeze()
    trim_heap()


def free_closed_models_soon() -> None:
    """Free them in AFTER_S, in a thread."""
    timer = threading.Timer(AFTER_S, free_closed_models)
    timer.daemon = True
    timer.start()
