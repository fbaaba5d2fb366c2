"""What a family of vision models needs to be written as its publishers write it, and judged by transformers.

In: nothing. Out: the record `Case`, of which each file of this folder has one or several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PretrainedConfig

from goldens.small_tokenizers import Kind

Features = Callable[[Any, Any], list[torch.Tensor]]
"""The rows that a model makes of each tile or image, from what its processor returned: float32[M, D] each."""


@dataclass(frozen=True, slots=True)
class Case:
    """A family. `name`: of its files. `config`: of a tiny model; `model`: its class in transformers.

    `processor`: the class of its image processor and the options that differ. `options`:
    of llama.cpp's converter, for the model and for the projector.
    """

    name: str
    config: Callable[[], PretrainedConfig]
    tokenizer: Kind
    processor: tuple[str, dict[str, Any]]
    features: Features
    model: str = "AutoModelForImageTextToText"
    options: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ((40, 56), (23, 61), (90, 33))
    """Heights and widths of the images that it is judged with."""
    tolerance: float = 1e-3
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further files of the checkpoint that the converter reads, as JSON."""
    speaker: tuple[str, dict[str, Any]] | None = None
    """The class that makes prompts with images, and its options; None: prompts are not judged."""
    image_token: str = "<image>"
    """The token that stands for a row."""
    prompt: str = "the cat <image> sat on the mat"
    """A prompt with one image, as chat templates write it."""
