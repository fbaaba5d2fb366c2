"""Whether text that stands elsewhere in an earlier prompt may be taken from the cache with a model, as it is opened.

In: load options, an open model file. Out: options, a notice, or a refusal that names what stands in the way.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.graph.key_turns import key_turns
from edgeinfer.load_options import LoadOptions

ABLE = (AUTO_DEVICE, "reference")
"""Devices that move cached tokens to other positions."""
NOTICE = (
    "reuse is shifted: text that stands elsewhere than in an earlier prompt is not read again, so answers after it are "
    "not exact"
)


def reusing(options: LoadOptions) -> LoadOptions:
    """The options with what moving cached tokens needs: the cpu, and memory for a text before and after its change.

    Raises BadSetting for a device that moves none.
    """
    if options.reuse == "exact":
        return options
    if options.device not in ("auto", *ABLE):
        raise BadSetting(
            f"{options.device} moves no cached tokens: use --device cpu with --reuse shifted, or --reuse exact"
        )
    device = AUTO_DEVICE if options.device == "auto" else options.device
    return replace(options, device=device, n_sessions=options.n_sessions + 1)


def why_exact(subject: Subject, options: LoadOptions) -> str:
    """Why cached tokens of a model cannot be moved; an empty text if they can."""
    if options.device not in ABLE or subject.spec is None:
        return f"{options.device} moves no cached tokens"
    if options.isolate:
        return "a device in a process of its own (--isolate) moves no cached tokens"
    try:
        key_turns(subject.spec)
    except UnsupportedModel as reason:
        return str(reason)
    return ""


def told_of_reuse(subject: Subject, options: LoadOptions) -> tuple[str, ...]:
    """A notice if answers may not be exact. Raises UnsupportedModel if that is asked for and cannot be."""
    if options.reuse == "exact":
        return ()
    reason = why_exact(subject, options)
    if reason:
        raise UnsupportedModel(f"{reason}; use --reuse exact")
    return (NOTICE,)
