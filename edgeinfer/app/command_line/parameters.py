"""Parameters that need no conversion: missing values and texts, for each of which typer 0.29 imports pydantic (0.1 s).

In: the parameters of a command. Out: the same, which take such values as they are, and leave numbers, and texts that
are an error, to typer. Knows no command; earlier versions of typer are left as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


def take_texts(parameters: Iterable[Any]) -> None:
    """Let parameters take missing values and texts as they are."""
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor"):
            parameter.process_value = functools.partial(_processed, parameter)


def _processed(parameter: Any, context: Any, value: Any) -> Any:
    """The value of a parameter, as its class would return it."""
    described, is_many = parameter.type_descriptor, parameter.multiple or parameter.nargs == -1
    read = described.parameter_info.parser
    if value is None and not parameter.required:
        taken: Any = () if is_many else None
    elif isinstance(value, str) and (read is not None or described.annotation is str):
        taken = value if read is None else read(value)
    elif isinstance(value, tuple | list) and read is None and described.annotation == list[str]:
        taken = list(value)
    else:
        return type(parameter).process_value(parameter, context, value)
    return taken if parameter.callback is None else parameter.callback(context, parameter, taken)
