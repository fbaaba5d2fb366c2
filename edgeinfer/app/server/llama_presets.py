"""llama-server's files of presets (`--models-preset models.ini`) in the words of ours.

In: the text of an INI file: a section for each model, [*] for all, keys that are llama-server's flags without dashes or
its environment variables. Out: the tables that a TOML file of presets would have, and which setting is in which line.
Keys that only place or speed up a model are left out; those that would change an answer and have no equal are refused.
Opens nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeinfer.errors import BadSetting

ALL = "*"
DEFAULTS = "defaults"
COMMON: Mapping[str, object] = MappingProxyType({"load_on_startup": False, "hides": "none"})
"""What [defaults] say unless the file does: llama-server loads on demand, and lists the models that presets use too."""
KV_KINDS: Mapping[tuple[str, str], str] = MappingProxyType(
    {("q8_0", "q8_0"): "q8", ("q8_0", "q4_0"): "q8q4", ("q4_0", "q4_0"): "q4", ("f16", "f16"): "f16"}
)
"""Our kind of KV cache for llama-server's types of keys and values."""
ON, OFF = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")
SECTION = re.compile(r"\[\s*([^\]]+?)\s*\]\s*(?:[;#].*)?")
PAIR = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*=[ \t]*([^;#]*?)\s*(?:[;#].*)?")
SAME: Mapping[str, str] = MappingProxyType(
    {
        **{name: name.replace("-", "_") for name in ("top-p", "top-k", "min-p", "repeat-penalty")},
        "temp": "temp",
        "temperature": "temp",
        "chat-template-file": "chat_template_file",
        **dict.fromkeys(("mmproj", "mm"), "mmproj"),
    }
)
"""Keys whose values ours take as they are."""
UNLIMITED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("seed", "s"), "seed"),
        **dict.fromkeys(("threads", "t"), "threads"),
        **dict.fromkeys(("n-predict", "predict", "n"), "max_tokens"),
        "reasoning-budget": "max_thought_tokens",
    }
)
"""Keys for which -1 says what ours do without a value."""
MODEL: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("model", "hf-repo", "hf-file", "model-url")},
        "m": "model",
        "hf": "hf-repo",
        "hfr": "hf-repo",
        "hff": "hf-file",
        "mu": "model-url",
    }
)
"""Keys that say together which model it is."""
DRAFT: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("spec-draft-model", "model-draft", "md"), ""),
        **dict.fromkeys(("spec-draft-hf", "hf-repo-draft", "hfrd", "hfd"), "hf:"),
    }
)
"""Keys of a model that drafts, with what stands before it in a source."""
CACHE: Mapping[str, int] = MappingProxyType({"cache-type-k": 0, "ctk": 0, "cache-type-v": 1, "ctv": 1})
"""Keys of the types of keys (0) and values (1)."""
LEFT_OUT = frozenset(
    {
        *("version", "stop-timeout", "jinja", "embedding", "embeddings", "reranking", "rerank", "offline", "metrics"),
        *("slots", "n-gpu-layers", "gpu-layers", "ngl", "device", "dev", "main-gpu", "mg", "split-mode", "sm"),
        *("tensor-split", "ts", "cpu-moe", "cmoe", "n-cpu-moe", "ncmoe", "override-tensor", "ot", "fit"),
        *("kv-offload", "op-offload", "repack", "flash-attn", "fa", "batch-size", "b", "ubatch-size", "ub"),
        *("threads-batch", "tb", "cont-batching", "cb", "mmap", "mlock", "numa", "prio", "poll", "cache-prompt"),
        *("cache-reuse", "cache-ram", "swa-full", "kv-unified", "ctx-checkpoints", "warmup", "verbose", "v"),
        *("reasoning-format", "parallel", "np", "spec-draft-n-max", "spec-draft-n-min", "draft-max", "draft"),
        *("draft-min", "gpu-layers-draft", "ngld"),
        *("mmproj-url", "mmu", "mmproj-offload"),
    }
)
"""Keys that change no answer to a text, or that the server's own command line says."""


def tables_of(text: str, path: object) -> tuple[dict[str, object], str]:
    """The tables of an INI file of presets, and its lines with our names. Raises BadSetting with a mistake's line."""
    sections, found, lines = dict[str, _IniSection](), None, text.splitlines()
    told = [""] * len(lines)
    for number, line in enumerate(lines):
        where = f"{path}, line {number + 1}" + ("" if found is None else f", [{found.name}]")
        if not line.strip() or line.lstrip()[0] in ";#":
            continue
        if header := SECTION.fullmatch(line.strip()):
            if header[1] == DEFAULTS:
                raise BadSetting(
                    f"{where}: a model needs another name than {DEFAULTS}; settings for all are in [{ALL}]"
                )
            found = sections[header[1]] = _IniSection(DEFAULTS if header[1] == ALL else header[1])
            told[number] = f"['{found.name}']"
        elif (pair := PAIR.fullmatch(line)) is None:
            raise BadSetting(f"{where}: this is neither a [section] nor KEY = VALUE")
        elif found is not None:
            told[number] = " = ".join([*found.read(pair[1], pair[2], where), ""])
        elif pair[1] != "version":
            raise BadSetting(f"{where}: {pair[1]} belongs into a section: [{ALL}], or one with the name of a model")
    tables: dict[str, object] = {section.name: section.found for section in sections.values()}
    return {**tables, DEFAULTS: {**COMMON, **sections[ALL].found} if ALL in sections else dict(COMMON)}, "\n".join(told)


@dataclass
class _IniSection:
    """One section: our settings by name; parts of those that several keys say."""

    name: str
    found: dict[str, object] = field(default_factory=dict)
    model: dict[str, str] = field(default_factory=dict)
    cache: dict[int, str] = field(default_factory=dict)
    drafts: list[str] = field(default_factory=list)

    def read(self, given: str, value: str, where: str) -> list[str]:
        """Take a key and its value; returns the settings that it says. Raises BadSetting."""
        settings = self._settings(given, value, where)
        self.found |= settings
        return list(settings)

    def _settings(self, given: str, value: str, where: str) -> dict[str, object]:
        key = given.removeprefix("LLAMA_ARG_").lower().replace("_", "-") if given.startswith("LLAMA_ARG_") else given
        if key.removeprefix("no-") in LEFT_OUT or (key in UNLIMITED and value == "-1"):
            return {}
        if key in SAME or key in UNLIMITED:
            return {SAME.get(key) or UNLIMITED[key]: _plain(value)}
        if key in MODEL:
            self.model[MODEL[key]] = value
            return {"model": self._source()}
        if key in DRAFT:
            self.drafts.append(f"{DRAFT[key]}{value}")
            return {"draft_from": list(self.drafts)}
        if key in CACHE:
            self.cache[CACHE[key]] = value
            return {"kv": self._kv(where)}
        if key in OTHERS:
            return OTHERS[key](value, where)
        raise BadSetting(f"{where}: {given} has no equal in edgeinfer; there are: {', '.join(_known())}")

    def _source(self) -> str:
        """The model: a path, a repository with or without the name of a file, or an address."""
        told = self.model
        if "model" in told:
            return told["model"]
        if "hf-repo" in told:
            file = told.get("hf-file", "").removesuffix(".gguf")
            return f"hf:{told['hf-repo']}" if not file else f"hf:{told['hf-repo'].partition(':')[0]}:{file}"
        return told.get("model-url", told.get("hf-file", ""))

    def _kv(self, where: str) -> str:
        """The kind of the KV cache; values have the type of keys while only that is known, and the other way round."""
        kinds = self.cache.get(0, self.cache.get(1, "")), self.cache.get(1, self.cache.get(0, ""))
        if kinds not in KV_KINDS:
            there = ", ".join(" with ".join(pair) for pair in KV_KINDS)
            raise BadSetting(
                f"{where}: a KV cache of {' with '.join(kinds)} is not among ours: {there} (keys with values)"
            )
        return KV_KINDS[kinds]


def _plain(value: str) -> object:
    """A number as such, so that it reads as one; any other text, for the settings to judge."""
    try:
        number = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return number if type(number) in (int, float) else value


def _is_on(value: str, where: str) -> bool:
    """Raises BadSetting for what is no switch."""
    if value.lower() not in (*ON, *OFF):
        raise BadSetting(f"{where}: this needs {' or '.join((ON[2], OFF[2]))}, not {value!r}")
    return value.lower() in ON


def _context(value: str, where: str) -> dict[str, object]:
    """0 leaves the context to the model."""
    return {} if value in ("0", "-1") else {"ctx": _plain(value)}


def _template(value: str, where: str) -> dict[str, object]:
    """The name of a template. Raises BadSetting for the text of one."""
    if re.fullmatch(r"[\w.-]+", value) is None:
        raise BadSetting(
            f"{where}: chat-template is a name here; put a template's text into a file: chat-template-file"
        )
    return {"chat_template": value}


def _variables(value: str, where: str) -> dict[str, object]:
    """Variables of the template about thinking. Raises BadSetting for others."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given.keys() <= {"enable_thinking", "reasoning_effort"}:
        raise BadSetting(f"{where}: of these variables, edgeinfer keeps enable_thinking and reasoning_effort, as JSON")
    thinks = given.get("enable_thinking")
    found = {} if thinks is None else {"enable_thinking": "on" if thinks else "off"}
    return found | ({"reasoning_effort": given["reasoning_effort"]} if "reasoning_effort" in given else {})


def _thinking(value: str, where: str) -> dict[str, object]:
    """Auto is as the template says."""
    return {"enable_thinking": "auto" if value == "auto" else "on" if _is_on(value, where) else "off"}


def _idle(value: str, where: str) -> dict[str, object]:
    """Seconds after which a model is closed; -1: never."""
    return {"keep_alive": -1 if value == "-1" else _plain(value)}


def _lora(value: str, where: str) -> dict[str, object]:
    return {"lora": [part.strip() for part in value.split(",") if part.strip()]}


def _aliases(value: str, where: str) -> dict[str, object]:
    return {"aliases": [part.strip() for part in value.split(",") if part.strip()]}


def _speculation(value: str, where: str) -> dict[str, object]:
    return {"spec": "off" if value == "none" else "on"}


def _projector(value: str, where: str) -> dict[str, object]:
    return {"mmproj": "auto" if _is_on(value, where) else "off"}


def _no_projector(value: str, where: str) -> dict[str, object]:
    return {"mmproj": "off" if _is_on(value, where) else "auto"}


def _startup(value: str, where: str) -> dict[str, object]:
    return {"load_on_startup": _is_on(value, where)}


def _listing(value: str, where: str) -> dict[str, object]:
    return {"hides": "all" if _is_on(value, where) else "none"}


Reading = Callable[[str, str], dict[str, object]]
OTHERS: Mapping[str, Reading] = MappingProxyType(
    {
        **dict.fromkeys(("ctx-size", "c"), _context),
        **dict.fromkeys(("lora", "lora-scaled"), _lora),
        **dict.fromkeys(("alias", "a"), _aliases),
        **dict.fromkeys(("reasoning", "rea"), _thinking),
        "chat-template": _template,
        "chat-template-kwargs": _variables,
        "sleep-idle-seconds": _idle,
        "spec-type": _speculation,
        "mmproj-auto": _projector,
        "no-mmproj": _no_projector,
        "load-on-startup": _startup,
        "dedup-cache-models": _listing,
    }
)
"""Keys whose values ours say in other words."""


def _known() -> list[str]:
    """Long names of the keys that are read."""
    every = {*SAME, *UNLIMITED, *MODEL, *DRAFT, *CACHE, *OTHERS}
    return sorted(key for key in every if len(key) > 3)
