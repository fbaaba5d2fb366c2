"""Notices about load options that may not do what the user meant.

In: options, and what came of them. Out: sentences for people.
"""

from __future__ import annotations

from edgeinfer.engine.run.executor import AUTO_SCHEDULE
from edgeinfer.load_options import LoadOptions


def doubtful(options: LoadOptions, device: str, n_context: int, trained: int) -> tuple[str, ...]:
    """Notices about options that may not do what the user meant."""
    notices: tuple[str, ...] = ()
    if options.schedule != AUTO_SCHEDULE and "," not in options.device:
        notices += (
            f"schedule {options.schedule} says how several devices share a model and changes nothing on "
            f"{device} alone; --device cpu,openvino, say, names two",
        )
    if options.isolate and options.prefix_bytes:
        notices += ("with --isolate no prefixes are kept on disk: each start reads prompts anew",)
    if n_context > trained:
        notices += (f"a context of {n_context} tokens is more than the {trained} this model was trained for",)
    return notices
