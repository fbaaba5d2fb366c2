"""Reading and writing calls that are no JSON objects: tags, Python-like calls, and the types of their arguments.

In: text, schemas of arguments. Out: names and arguments, or ValueError. Knows no family.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.models.text.tool_formats import Parameters

Calls = list[tuple[str, dict[str, Any]]]
SOURCE = "what-a-model-wrote"
warnings.filterwarnings("ignore", module=SOURCE)  # what the compiler thinks of its style belongs on nobody's screen


def typed(text: str, function: str, argument: str, parameters: Parameters) -> Any:
    """The value that a text stands for: itself where the schema wants text, else the JSON that it is, else itself."""
    properties = parameters.get(function, {}).get("properties")
    schema = properties.get(argument) if isinstance(properties, dict) else None
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text, text)


def object_in(text: str) -> dict[str, Any]:
    """The JSON object that a text is; an empty text is an empty one. Raises ValueError for others."""
    found = json.loads(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("arguments are no object")
    return found


def tagged(text: str, call: str, argument: str, parameters: Parameters) -> Calls:
    """Calls and arguments that two regular expressions find: a name and what belongs to it.

    Raises ValueError also for an argument that begins and does not end, as where an answer was cut.
    """
    calls: Calls = []
    begin = re.split(r"[(\\\[]", argument, maxsplit=1)[0]
    for found in re.finditer(call, text, re.DOTALL):
        name = found[1].strip()
        arguments = {
            key.strip(): typed(value, name, key.strip(), parameters)
            for key, value in re.findall(argument, found[2], re.DOTALL)
        }
        if begin in re.sub(argument, "", found[2], flags=re.DOTALL):
            raise ValueError("an argument without its end")
        calls.append((name, arguments))
    return at_least_one(calls)


def with_objects(text: str, call: str) -> Calls:
    """Calls that a regular expression finds: a name and a JSON object."""
    return at_least_one([(found[1].strip(), object_in(found[2])) for found in re.finditer(call, text, re.DOTALL)])


def python_calls(text: str, parameters: Parameters) -> Calls:
    """Calls in a list, as in Python: [f(a=1), g()]. Raises ValueError for anything else."""
    try:
        tree = ast.parse(text.strip(), SOURCE, "eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no calls") from error
    calls = []
    for node in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("no call")
        calls.append((ast.unparse(node.func), {_key(word): _value(word.value) for word in node.keywords}))
    return at_least_one(calls)


def written_python_calls(calls: Sequence[tuple[str, object]]) -> str:
    """Calls in a list, as in Python."""
    told = []
    for name, arguments in calls:
        given = arguments.items() if isinstance(arguments, Mapping) else ()
        told.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in given)})")
    return f"[{', '.join(told)}]"


def _key(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError("an argument without a name")
    return word.arg


def _value(node: ast.expr) -> Any:
    """A literal, which may have JSON's names of constants."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)


def at_least_one(calls: Sequence[tuple[str, dict[str, Any]]]) -> Calls:
    """The calls. Raises ValueError if there are none."""
    if not calls:
        raise ValueError("no calls")
    return list(calls)
