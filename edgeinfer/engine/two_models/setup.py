"""From the options of a load to two models, and what cannot be combined with them.

In: options, the open large model. Out: `TwoModels`. What is opened is closed again if something else fails.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeinfer.backends.base import Limits
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.draft_model import draft_bytes, split_sources
from edgeinfer.engine.two_models.small_model import open_small_model
from edgeinfer.engine.two_models.two_models import TwoModels
from edgeinfer.errors import BadSetting, DoesNotFit
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.text import Tokenizer
from edgeinfer.text_values import size_text


def with_two_models(options: LoadOptions) -> LoadOptions:
    """Options under which two models can write, if a small one is named: on the cpu, without drafts and images.

    Raises BadSetting for what cannot be combined with it.
    """
    if options.small_model is None:
        return options
    _small_path(options.small_model)
    refused = {
        "--draft-from": bool(options.draft_from),
        "--self-draft": options.self_draft != "off",
        "--isolate": options.isolate,
        "--mmproj": options.mmproj not in ("auto", "off"),
        "rows": options.rows,
        "--device": options.device not in ("auto", *ABLE),
    }
    if named := [flag for flag, is_given in refused.items() if is_given]:
        raise BadSetting(
            f"--small-model writes on the cpu alone, from text, and is not drafted for: leave out {', '.join(named)}, "
            "or --small-model"
        )
    device = AUTO_DEVICE if options.device == "auto" else options.device
    return replace(options, device=device, spec="off", mmproj="off")


ABLE = (AUTO_DEVICE, "reference")
"""Devices on which two models can write."""


def _small_path(name: str | Path) -> Path:
    """The file of the small model. Raises BadSetting."""
    path = split_sources([name])[1]
    if path is None:
        raise BadSetting(
            f"small_model cannot be {str(name)!r}, which is no model: give a GGUF file, or the name of a model on this "
            "machine (edgeinfer ls)"
        )
    return path


def second_bytes(options: LoadOptions, room: Limits) -> int:
    """Memory of the model that drafts or writes beside one with limits `room`, from its header; 0 for none."""
    if options.small_model is not None:
        return draft_bytes([options.small_model], room)
    return 0 if options.spec == "off" else draft_bytes(options.draft_from, room)


def require_both(options: LoadOptions, n_bytes: int, reason: str) -> None:
    """Raises DoesNotFit if a small model is to write, for which there is no memory beside the large one."""
    if options.small_model is not None:
        raise DoesNotFit(f"{options.small_model} takes {size_text(n_bytes)} beside the model: {reason}")


def two_models_for(options: LoadOptions, tokenizer: Tokenizer, pool: Pool) -> TwoModels | None:
    """Open the small model of the options, if there is one. Raises BadSetting, DoesNotFit, and as opening models do."""
    if options.small_model is None:
        return None
    own = tokenizer.vocabulary, pool.executor, options.progress
    small = open_small_model(_small_path(options.small_model), *own)
    try:
        return TwoModels(small, options.handing_over, tokenizer, pool)
    except BaseException:
        small.close()
        raise


def told_of_two(two_models: TwoModels | None) -> tuple[str, ...]:
    """What there is to tell of a model in whose place a small one writes."""
    return () if two_models is None else (two_models.notice,)
