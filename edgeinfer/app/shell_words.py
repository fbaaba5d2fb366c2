"""What the shell completes: names of models, values of settings, names of settings.

In: the beginning of a word. Out: the words that it may become. Reads the list of models and no model; fails never, as
nobody would see why. A path is left to the shell. bash ends words at colons, which names of models have.
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
    """Names of models on this computer; none for what begins like a path, which the shell completes."""
    return [] if _is_path(incomplete) else _beginning(incomplete, _models)


def source_words(incomplete: str) -> list[str]:
    """Beginnings of sources, and the starter model."""
    return [] if _is_path(incomplete) else _beginning(incomplete, _sources)


def setting_names(incomplete: str) -> list[str]:
    """Names of settings."""
    return _beginning(incomplete, _settings)


def value_words(context: typer.Context, incomplete: str) -> list[str]:
    """Values of the setting that stands before the word."""
    return setting_words(str(context.params.get("name") or ""))(incomplete)


def setting_words(name: str) -> Completer:
    """Completes values of the setting called `name`."""

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
    """Undo that bash takes a word with colons apart; it is given what follows the last colon of the word."""
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
    """Put the words of the line together; how much of the last one stands up to its last colon."""
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
    """The words that begin like this."""
    try:
        return [word for word in words() if word.startswith(incomplete) and word.isprintable()]
    except Exception:  # a traceback in the middle of somebody's line helps nobody
        return []


def _is_path(incomplete: str) -> bool:
    """Whether a word begins like a path; names of models have a / inside only."""
    return incomplete.startswith((".", "~", os.sep))


def _models() -> Iterable[str]:
    from edgeinfer.models.store import ModelStore

    return [model.name for model in ModelStore().models()]


def _sources() -> Iterable[str]:
    from edgeinfer.models.store import STARTER_SOURCE

    return [STARTER_SOURCE, "hf:", "https://", "ollama:", "pypi:"]


def _settings() -> Iterable[str]:
    from edgeinfer.settings import declared_options

    return declared_options()


def _devices(listed: bool) -> Iterable[str]:
    """Names of devices; auto stands alone."""
    from edgeinfer.backends.base import DEVICES

    return [*([] if listed else ["auto"]), *(name for name in sorted(DEVICES.keys()) if name != "null")]


def _words_of(name: str) -> Iterable[str]:
    """The words that a setting may be; none where it may be anything."""
    from edgeinfer.setting_values import THEMES
    from edgeinfer.settings import find_option

    if name == "theme":
        return THEMES
    if name == "schedule":
        from edgeinfer.scheduling.placement.schedules import SCHEDULES

        return SCHEDULES
    if name == "spec":
        return ("auto", "on", "off")
    return find_option(name).words
