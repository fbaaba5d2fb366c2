"""Models known by a short name: where they are, how large, and what they are good at.

In: `known_models.toml`. Out: `KnownModel`s. Whether a model can be opened, and whether it reads images, is asked of the
architectures and of the projector types, not of the list. Touches no network.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.file_names import quant_of

FILE = Path(__file__).with_name("known_models.toml")
GIGA = 1e9
Task = Literal["chat", "code", "embed", "vision"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model. `n_params` of all weights, `n_active` of those that a token is multiplied by.

    `width`: of the residual stream; `kv_numbers`: keys and values of a token in all layers that keep every position,
    `window_numbers` in those that keep `window` positions and some more. `quants`: bytes of the files, the usual quant
    first. `projector`: type of the file with which it reads images, "" for none, of `projector_bytes`. `rank`: how good
    its answers are, by judgement.
    """

    name: str
    source: str
    architecture: str
    n_params: int
    n_active: int
    n_layers: int
    width: int
    kv_numbers: int
    window_numbers: int
    window: int
    n_context: int
    quants: Mapping[str, int]
    tasks: tuple[Task, ...]
    good_at: str
    licence: str
    rank: int
    projector: str = ""
    projector_bytes: int = 0

    @property
    def sees(self) -> bool:
        """Whether edgeinfer reads images with it."""
        from edgeinfer.models.projectors import is_known

        return self.opens and bool(self.projector) and is_known(self.projector)

    def does(self, task: Task) -> bool:
        """Whether edgeinfer does a task with it."""
        return task in self.tasks and (self.sees if task == "vision" else self.opens)

    def download_bytes(self, quant: str) -> int:
        """Bytes of what is pulled: the model and its projector."""
        return self.quants[quant] + self.projector_bytes

    @property
    def active_share(self) -> float:
        """The share of the weights that a token is multiplied by."""
        return self.n_active / self.n_params

    @property
    def opens(self) -> bool:
        """Whether edgeinfer has its architecture."""
        from edgeinfer.models.architectures import architecture_of

        try:
            architecture_of(self.architecture)
        except UnsupportedModel:
            return False
        return True

    def source_of(self, quant: str | None = None) -> str:
        """The source of one quant; without `quant`, of the usual one."""
        if not self.source.startswith("hf:"):
            return self.source
        return f"{self.source}:{quant or next(iter(self.quants))}"


@functools.cache
def known_models() -> Mapping[str, KnownModel]:
    """All known models by name."""
    import tomllib

    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return MappingProxyType({name: _model(name, fields) for name, fields in table.items()})


def known_model(text: str) -> tuple[KnownModel | None, str | None]:
    """The model that a text names, and the quant after it; (None, None) if it names none.

    As Ollama writes names too: qwen3:8b is qwen3-8b, and llama3.2:1b:Q8_0 is llama-3.2-1b at that quant.
    """
    name, colon, quant = text.strip().rpartition(":")
    if not colon or quant_of(f"-{quant}") is None:
        name, quant = text.strip(), ""
    known = known_models()
    found = known.get(name.lower()) or next((each for each in known.values() if _bare(each.name) == _bare(name)), None)
    return (None, None) if found is None or "/" in text else (found, quant or None)


def near_names(text: str) -> list[str]:
    """Known names that a text may mean: those that begin like it, else those that look like it."""
    import difflib

    names = {_bare(name): name for name in known_models()}
    begun = [name for bare, name in names.items() if _bare(text) and bare.startswith(_bare(text))]
    return begun or [names[bare] for bare in difflib.get_close_matches(_bare(text), names)]


def _bare(name: str) -> str:
    """A name without what people write between its parts."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _model(name: str, fields: Mapping[str, Any]) -> KnownModel:
    n_params, projector = round(fields["parameters"] * GIGA), fields.get("projector", {})
    return KnownModel(
        name=name,
        source=fields["source"],
        architecture=fields["architecture"],
        n_params=n_params,
        n_active=round(fields["active"] * GIGA) if "active" in fields else n_params,
        n_layers=fields["layers"],
        width=fields["width"],
        kv_numbers=2 * fields["kv_width"] * fields["kv_layers"],
        window_numbers=2 * fields.get("window_width", fields["kv_width"]) * fields.get("window_layers", 0),
        window=fields.get("window", 0),
        n_context=fields["context"],
        quants=MappingProxyType({quant: round(size * GIGA) for quant, size in fields["quants"].items()}),
        tasks=tuple(fields["tasks"]),
        good_at=fields["good_at"],
        licence=fields["licence"],
        rank=fields["rank"],
        projector=projector.get("type", ""),
        projector_bytes=round(projector.get("size", 0) * GIGA),
    )
