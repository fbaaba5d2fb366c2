"""Shell completion: names of models, values of settings, names of settings.

In: the beginning of a word. Out: possible completions. Reads the list of models but no model; never raises, as the user
would not see why. Paths are left to the shell. bash splits words at colons, which model names may contain.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout

import typer

COMPLETING = "_EDGEINFER_COMPLETE"
BASH, WORDS, PLACE = "complete_bash", "COMP_WORDS", "COMP_CWORD"
Completer = Callable[[str], list[str]]


def model_names(incomplete: str) -> list[str]:
    """Names of models on this computer; none for a word that begins like a path, which the shell completes."""
    return [] if _is_path(incomplete) else _beginning(incomplete, _models)


def source_words(incomplete: str) -> list[str]:
    """Prefixes of sources, the starter model, and short names."""
    return [] if _is_path(incomplete) else _beginning(incomplete, _sources)


def setting_names(incomplete: str) -> list[str]:
    """Names of settings."""
    return _beginning(incomplete, _settings)


def value_words(context: typer.Context, incomplete: str) -> list[str]:
    """Values of the setting named before the word."""
    return setting_words(str(context.params.get("name") or ""))(incomplete)


def setting_words(name: str) -> Completer:
    """A completer for values of the setting called `name`."""

    def words(incomplete: str) -> list[str]:
        if name == "model":
            return model_names(incomplete)
        if name == "device":
            before, comma, _ = incomplete.rpartition(",")
            return _beginning(incomplete, lambda: [before + comma + device for device in _devices(bool(comma))])
        return _beginning(incomplete, lambda: _words_of(name))

    return words


@contextmanager
def joined_at_colons(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Work around bash splitting words at colons: complete the whole word, print only what follows its last colon."""
    cut = _join(environ) if environ.get(COMPLETING) == BASH else 0
    if not cut:
        yield
        return
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        print("\n".join(line[cut:] for line in offered.getvalue().splitlines()))


def _join(environ: MutableMapping[str, str]) -> int:
    """Rejoin the words of the command line; return the length of the last word up to and including its last colon."""
    words, place = environ.get(WORDS, "").split("\n"), environ.get(PLACE, "")
    if not place.isdecimal() or int(place) >= len(words):
        return 0
    joined: list[str] = []
    for number, word in enumerate(words[: int(place) + 1]):
        if number > 1 and (word.startswith(":") or joined[-1].endswith(":")):
            joined[-1] += word
        else:
            joined.append(word)
    environ[WORDS], environ[PLACE] = "\n".join(joined), str(len(joined) - 1)
    return joined[-1].rfind(":") + 1


def _beginning(incomplete: str, words: Callable[[], Iterable[str]]) -> list[str]:
    """The words that start with `incomplete`."""
    try:
        return [word for word in words() if word.startswith(incomplete) and word.isprintable()]
    except Exception:  # a traceback in the middle of a command line would not help the user
        return []


def _is_path(incomplete: str) -> bool:
    """Whether a word begins like a path; model names contain a / only inside."""
    return incomplete.startswith((".", "~", os.sep))


def _models() -> Iterable[str]:
    from edgeinfer.models.store import ModelStore

    return [model.name for model in ModelStore().models()]


def _sources() -> Iterable[str]:
    from edgeinfer.models.known_models import known_models
    from edgeinfer.models.store import STARTER_SOURCE

    return [STARTER_SOURCE, "hf:", "https://", "ollama:", "pypi:", *known_models()]


def _settings() -> Iterable[str]:
    from edgeinfer.settings import declared_options

    return declared_options()


def _devices(listed: bool) -> Iterable[str]:
    """Names of devices; auto cannot be combined with others."""
    from edgeinfer.backends.base import DEVICES

    return [*([] if listed else ["auto"]), *(name for name in sorted(DEVICES.keys()) if name != "null")]


def _words_of(name: str) -> Iterable[str]:
    """The possible words of a setting; none if it accepts any value."""
    from edgeinfer.setting_values import THEMES
    from edgeinfer.settings import find_option

    if name == "theme":
        return THEMES
    if name == "schedule":
        from edgeinfer.scheduling.placement.schedules import SCHEDULES

        return SCHEDULES
    if name == "chat_template":
        from edgeinfer.models.text.template_choice import built_in_names

        return built_in_names()
    if name == "self_draft":
        return ("auto", "off")
    if name == "spec":
        return ("auto", "on", "off")
    return find_option(name).words
