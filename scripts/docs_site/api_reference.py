"""The reference of the Python API, from the docstrings and signatures of public names.

In: `edgeinfer.__all__`. Out: Markdown with a section per name: its signature, its docstring, its public members.
A public function or class without a docstring is an error. Knows no name of the package but those of `GROUPS`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_origin

import edgeinfer
from edgeinfer.engine.requests.request import Options

GROUPS = {
    "Loading and answering": ("load", "LLM", "Session", "TextStream", "SamplingSettings"),
    "Prompts": ("Message", "Prompt", "Image", "Sound", "PromptRows", "Module", "ToolCall"),
    "Results": ("Stats", "TokenLogprobs", "Score", "BatchAnswer", "BatchStream", "DraftSpan"),
    "What a model is and does": ("ModelInfo", "QueueStats", "RequestProgress"),
}
"""Sections in which names come first; all others follow in `Further names`, errors in `Errors`."""
WIDTH = 76
LISTED = re.compile(r"\w+(?: {2,}\S.*)?\n(?: {4,}\S|\w+(?: {2,}\S|\n))|\w+ {4,}\S")
"""How a list of names begins that is aligned by hand."""


def api_reference() -> str:
    """All public names."""
    named = {name for names in GROUPS.values() for name in names}
    rest = [name for name in edgeinfer.__all__ if name not in named and name != "__version__"]
    errors = [name for name in rest if is_error(getattr(edgeinfer, name))]
    groups = {**GROUPS, "Further names": [name for name in rest if name not in errors], "Errors": errors}
    lines: list[str] = []
    for title, names in groups.items():
        present = [name for name in names if name in edgeinfer.__all__]
        if present:
            lines += [f"## {title}", ""]
        for name in present:
            lines += section(name, getattr(edgeinfer, name))
            lines += answer_options() if name == "LLM" else ()
    return "\n".join(lines)


def answer_options() -> Iterator[str]:
    """Lines about the keywords of everything that answers, which signatures call `**options`."""
    hints = Options.__annotations__
    yield from (
        "### Options of answers",
        "",
        "Keywords of `chat`, `complete`, `batch` and the like, `**options` above.",
        "",
    )
    yield from ("```py", *(f"{name}: {written(hint)}" for name, hint in hints.items()), "```", "")
    yield from description("Options", Options)


def written(hint: Any) -> str:
    """A type as it is written in the source: those of a `TypedDict` are references."""
    return type_text(getattr(hint, "__forward_arg__", hint))


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def section(name: str, value: Any) -> Iterator[str]:
    """Lines of a public name's section."""
    yield from (f"### {name}", "")
    if is_error(value):
        yield from (f"`edgeinfer.{name}`, a kind of `{value.__mro__[1].__name__}`.", "", *description(name, value))
        return
    if get_origin(value) is not None or not callable(value):
        yield from ("```py", f"edgeinfer.{name} = {value}".replace("typing.", ""), "```", "")
        return
    is_shown = not isinstance(value, type) or dataclasses.is_dataclass(value)
    if is_shown:
        yield from ("```py", signature(f"edgeinfer.{name}", value), "```", "")
    yield from description(name, value)
    if isinstance(value, type):
        for member, thing in members(value):
            yield from member_lines(f"{name}.{member}", thing)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, as they are declared."""
    seen = set[str]()
    for base in kind.__mro__[:-1]:
        if not base.__module__.startswith("edgeinfer"):
            continue
        for name, thing in vars(base).items():
            wanted = isinstance(thing, property | classmethod | staticmethod) or inspect.isfunction(thing)
            if wanted and not name.startswith("_") and name not in seen and inspect.getdoc(thing) is not None:
                seen.add(name)
                yield name, thing


def member_lines(name: str, thing: Any) -> Iterator[str]:
    """Lines of a member."""
    yield from (f"#### {name}", "")
    if isinstance(thing, property):
        returned = inspect.signature(thing.fget).return_annotation if thing.fget else inspect.Signature.empty
        form = name if returned is inspect.Signature.empty else f"{name}: {type_text(returned)}"
    else:
        function = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        form = signature(name, function)
    yield from ("```py", form, "```", "", *description(name, thing))


def signature(name: str, function: Any) -> str:
    """A signature in one line, or with a line for each parameter where that is too long."""
    found = inspect.signature(function)
    parts: list[str] = []
    starred = False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(parameter_text(parameter))
    returned = found.return_annotation
    is_named = returned is not inspect.Signature.empty and returned is not None and not isinstance(function, type)
    result = f" -> {type_text(returned)}" if is_named else ""
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def parameter_text(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    empty = inspect.Parameter.empty
    text = stars + parameter.name
    if parameter.annotation is not empty:
        text += f": {type_text(parameter.annotation)}"
    if parameter.default is empty:
        return text
    value = getattr(parameter.default, "__name__", None) or repr(parameter.default)
    if "object at 0x" in value or value.startswith("<"):
        value = "..."
    return f"{text} = {value}" if parameter.annotation is not empty else f"{text}={value}"


def type_text(annotation: object) -> str:
    """A type as one writes it, without the modules of ours."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:edgeinfer|typing|collections)(?:\.\w+)*\.(?=\w)", "", text)


def description(name: str, thing: Any) -> Iterator[str]:
    """A docstring as Markdown: paragraphs, and what is aligned by hand as it stands. Raises ValueError for none."""
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{name} is public and has no docstring")
    for paragraph in text.split("\n\n"):
        if LISTED.match(paragraph):
            yield from ("| | |", "|---|---|", *rows(paragraph), "")
        elif any(line.startswith((" ", "\t")) for line in paragraph.splitlines()):
            yield from ("```text", paragraph.rstrip(), "```", "")
        else:
            yield from (escaped(paragraph), "")


def rows(paragraph: str) -> Iterator[str]:
    """Table rows of a list of names, each with its text beside it or below, all texts in one column."""
    items: list[list[str]] = []
    for line in paragraph.splitlines():
        if line.startswith((" ", "\t")):
            items[-1].append(line.strip())
        else:
            items.append(line.split(maxsplit=1))
    for name, *texts in items:
        yield f"| `{name}` | {escaped(' '.join(texts)).replace('|', '&#124;')} |"


def escaped(text: str) -> str:
    """A paragraph in one line; outside of code nothing is taken for markup."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if number % 2 else harmless(part) for number, part in enumerate(parts))


def harmless(text: str) -> str:
    """Text in which nothing is markup."""
    text = re.sub(r"([\\*_\[\]{}])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
