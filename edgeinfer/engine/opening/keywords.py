"""The keywords of `edgeinfer.load`: those of the options record, and what is said of any other.

In: a function that opens a model with a record of options. Out: one that takes its fields as keywords. Opens nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from edgeinfer.engine.requests.request import Options
from edgeinfer.errors import BadSetting
from edgeinfer.foreign_names import TO_LOAD, hint
from edgeinfer.load_options import LoadOptions

P = ParamSpec("P")
T = TypeVar("T")
OpenWithOptions = Callable[[str | Path, LoadOptions], T]


def with_keywords_of(
    record: Callable[P, LoadOptions],
) -> Callable[[OpenWithOptions[T]], Callable[Concatenate[str | Path, P], T]]:
    """Make a function that takes an options record take the record's fields as keywords instead."""

    def decorate(open_model: OpenWithOptions[T]) -> Callable[Concatenate[str | Path, P], T]:
        fields = inspect.signature(record).parameters
        name = inspect.signature(open_model).parameters["name_or_path"]
        returned = inspect.signature(open_model).return_annotation
        signature = inspect.Signature([name, *fields.values()], return_annotation=returned)

        def load(*arguments: P.args, **options: P.kwargs) -> T:
            for option in options:
                if option not in signature.parameters:
                    raise BadSetting(f"load has no option {option!r}; {_unknown(option, fields)}")
            try:
                given = dict(signature.bind(*arguments, **options).arguments)
            except TypeError as reason:
                raise TypeError(f"load: {reason}") from None
            return open_model(given.pop("name_or_path"), record(**given))  # type: ignore[call-arg]

        functools.update_wrapper(load, open_model)
        load.__signature__ = signature  # type: ignore[attr-defined]
        return load  # type: ignore[return-value]

    return decorate


def _unknown(option: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown keyword."""
    if option in Options.__annotations__:
        return f"answers have it: llm.chat(messages, {option}=…)"
    return hint(option, known, TO_LOAD) or f"there are: {', '.join(known)}"
