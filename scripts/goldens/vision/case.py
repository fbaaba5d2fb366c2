"""What a family of vision models needs to be written as its publishers write it, and judged by transformers.

In: nothing. Out: the record `Case`, of which each file of this folder has one or several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from goldens.small_tokenizers import Kind

Features = Callable[[Any, Any], list[torch.Tensor]]
"""The rows that a model makes of each tile or image, from what its processor returned: float32[M, D] each."""


@dataclass(frozen=True, slots=True)
class Case:
    """A family. `name`: of its files. `config`: of a tiny model; `model`: its class, by name if transformers has it.

    `processor`: the class of its image processor and the options that differ. `options`: of llama.cpp's converter, for
    the model and for the projector. `renamed`: beginnings of names of tensors as transformers writes them, and as
    published checkpoints have them.
    """

    name: str
    config: Callable[[], PretrainedConfig]
    tokenizer: Kind
    processor: tuple[str, dict[str, Any]]
    features: Features
    model: str | type = "AutoModelForImageTextToText"
    options: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ((40, 56), (23, 61), (90, 33))
    """Heights and widths of the images that it is judged with."""
    repeated: int = 1
    """How often each pixel of a smaller picture is repeated down and across, so that the golden file stays small."""
    tolerance: float = 1e-3
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further files of the checkpoint, or further keys of files, as JSON."""
    speaker: tuple[str | type, dict[str, Any]] | None = None
    """The class that makes prompts with images, and its options; None: prompts are not judged."""
    text_options: tuple[str, ...] = ()
    """Options of the converter for the model alone."""
    has_text: bool = True
    """Whether the converter makes a model of it, beside the projector file."""
    architecture: str = ""
    """The name of the architecture in published files, where that of transformers differs."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Further arguments of a call of it."""
    image_token: str = "<image>"
    """The token that stands for a row."""
    prompt: str = "the cat <image> sat on the mat"
    """A prompt with one image, as chat templates write it."""
    keys: dict[str, int] = field(default_factory=dict)
    """Further keys of the projector file."""
    prepare: Callable[[Any], None] | None = None
    """Fills what a random model has besides weights."""
    projector: Callable[[Any, Path, Path], None] | None = None
    """Writes the projector file of a model, where llama.cpp's converter writes none; also given llama.cpp's folder."""
