"""The LoRA adapters loaded with a model: how much of each a request is answered with.

In: open adapters; scales by number or name, as requests state them. Out: a scale for each adapter. Scales that a
request does not state are those of the model, which may be changed between requests. Opens no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.adapter_choice import LARGEST_SCALE
from edgeinfer.errors import BadSetting
from edgeinfer.models.gguf import GGUFFile

Scales = tuple[float, ...]
AdapterScales = Mapping[int | str, float]


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter: its number, its name (that of its file, without a folder and a suffix), its file and its scale."""

    id: int
    name: str
    path: str
    scale: float


class LoadedAdapters:
    """The adapters of one model."""

    def __init__(self, paths: Sequence[str] = (), scales: Scales = (), *, takes_scales: bool = True) -> None:
        """`scales`: those that the model was loaded with. `takes_scales`: whether they may differ by request."""
        self._paths, self._loaded, self._takes_scales = tuple(paths), scales, takes_scales

    @classmethod
    def of(cls, file: object, *, takes_scales: bool) -> LoadedAdapters:
        """The adapters of an open file; none if it is no GGUF file."""
        if not isinstance(file, GGUFFile):
            return cls()
        scales = tuple(adapter.scale for adapter in file.adapters)
        return cls([adapter.path for adapter in file.adapters], scales, takes_scales=takes_scales)

    def __iter__(self) -> Iterator[LoadedAdapter]:
        """The adapters, with the scales of requests that state none."""
        for number, (path, scale) in enumerate(zip(self._paths, self._loaded, strict=True)):
            yield LoadedAdapter(number, Path(path).stem, path, scale)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def scales(self) -> Scales:
        """The scales of requests that state none; () if all requests have those that the model was loaded with."""
        return self._loaded if self._takes_scales else ()

    def scales_of(self, stated: AdapterScales | None) -> Scales:
        """The scales of a request, 0 for adapters it does not name; () as in `scales`. Raises BadSetting."""
        if stated is None:
            return self.scales
        found = [0.0] * len(self._paths)
        if not isinstance(stated, Mapping):
            raise BadSetting(f"lora cannot be {stated!r}: it must be scales by number or name of an adapter")
        for name, scale in stated.items():
            found[self._number(name)] = _checked(name, scale)
        if self._takes_scales:
            return tuple(found)
        if tuple(found) == self._loaded:
            return ()
        raise BadSetting(
            "this device adds LoRA adapters at the scales they were loaded with; load the model with --device cpu to "
            "choose them for each request"
        )

    def set_scales(self, stated: AdapterScales) -> None:
        """Change the scales of later requests that state none; 0 for adapters not named. Raises BadSetting."""
        found = self.scales_of(stated)
        self._loaded = found if self._takes_scales else self._loaded

    def _number(self, name: int | str) -> int:
        """The number of an adapter. Raises BadSetting if there is no such adapter, or several of that name."""
        named = [each.id for each in self if name in ((each.id,) if isinstance(name, int) else (each.name, each.path))]
        if len(named) == 1:
            return named[0]
        if len(named) > 1:
            raise BadSetting(f"there are {len(named)} LoRA adapters of the name {name!r}; state their numbers")
        there_are = ", ".join(f"{each.id} ({each.name})" for each in self) or "none: load some with --lora"
        raise BadSetting(f"there is no LoRA adapter {name!r}; there are: {there_are}")


def _checked(name: int | str, scale: object) -> float:
    """The scale as a float. Raises BadSetting for one that is no number or too large."""
    if isinstance(scale, int | float) and abs(scale) <= LARGEST_SCALE:
        return float(scale)
    raise BadSetting(
        f"the scale of LoRA adapter {name!r} cannot be {scale!r}: it must be a number up to {LARGEST_SCALE:g}, 1 for "
        "the adapter as it is"
    )
