"""Ray without what it prints: standard error is for people, and standard output for answers.

In: nothing. Out: contexts in which Ray starts, and in which Ray Data works. Errors are raised as ever.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = ("ray", "ray.data", "ray.train", "ray.tune")
LEVEL_VARIABLE = "RAY_BACKEND_LOG_LEVEL"


@contextmanager
def quiet_start() -> Iterator[None]:
    """What Ray's C++ parts print is dropped: all of it meanwhile, and what does not end the process from then on."""
    os.environ.setdefault(LEVEL_VARIABLE, "fatal")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def quiet_data() -> Iterator[None]:
    """Ray Data tells nothing of its work."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parameters that Ray is going to rename
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
