"""The modules of one model, by name: added once, named by any later prompt.

In: names and texts. Out: `Module`s. Reads them through a function of the engine's. Knows no cache.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence

from edgeinfer.engine.requests.module_prompts import Module
from edgeinfer.errors import BadSetting, ContextOverflow, UnknownKey, UnsupportedModel
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import Progress, no_progress

MOST_MODULES = 256
"""Most modules of a model."""
LOWEST_TEMPERATURE = 0.1
_NAME = re.compile(r"[\w.-]{1,100}")


class NamedModules:
    """The modules of one model, in the order in which they were added; may be used from any thread.

    `name in modules`, `modules[name]`, `len(modules)` and iterating over the modules do what they do elsewhere.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_context: int,
        prefix: Callable[[], Sequence[int]],
        read: Callable[[Module, Progress], None],
        drop: Callable[[Module], None],
        refusal: Callable[[Module], str],
    ) -> None:
        """`prefix`: what modules are read after, unless they say otherwise. `read`: reads a module now.

        `drop`: frees its memory. `refusal`: why this model cannot have such a module, "" if it can.
        """
        self._tokenizer, self._n_context, self._prefix = tokenizer, n_context, prefix
        self._read, self._drop, self._refusal = read, drop, refusal
        self._modules: dict[str, Module] = {}
        self._changing = threading.Lock()

    def add(
        self,
        name: str,
        text: str,
        *,
        temperature: float = 1.0,
        prefix: str | None = None,
        reads: bool = True,
        progress: Progress = no_progress,
    ) -> Module:
        """Read a text once, by itself, so that prompts can have it by name; another text of this name is replaced.

        Answers to such prompts are approximate: the text knows nothing of what stands before it. `temperature`: below 1
        it sharpens the attention to the text, and raises its weight against the rest of the prompt. `prefix`: what it
        is read after, instead of the beginning of a conversation; names of special tokens in it become those tokens.
        `reads`: now; if not, it is read when a prompt first has it. Raises BadSetting, ContextOverflow, EngineClosed,
        UnsupportedModel for models whose cached keys cannot be moved.
        """
        module = self._module(name, text, temperature, prefix)
        if refusal := self._refusal(module):
            raise UnsupportedModel(refusal)
        if reads:
            self._read(module, progress)
        with self._changing:
            before = self._modules.get(name)
            if before is None and len(self._modules) >= MOST_MODULES:
                raise BadSetting(f"there are {MOST_MODULES} modules, which is the most; remove one first")
            self._modules[name] = module
            is_used = before is None or any(each.key == before.key for each in self._modules.values())
        if before is not None and not is_used:
            self._drop(before)
        return module

    def remove(self, name: str) -> None:
        """Forget a module and free its memory; answers under way keep what they have. Raises UnknownKey."""
        with self._changing:
            module = self[name]
            del self._modules[name]
            is_used = any(each.key == module.key for each in self._modules.values())
        if not is_used:
            self._drop(module)

    def __getitem__(self, name: str) -> Module:
        """The module of a name. Raises UnknownKey, which tells what modules there are."""
        module = self._modules.get(name)
        if module is None:
            there_are = ", ".join(self._modules) or "none: add some first"
            raise UnknownKey(f"there is no module {name!r}; there are: {there_are}")
        return module

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[Module]:
        return iter(tuple(self._modules.values()))

    def __len__(self) -> int:
        return len(self._modules)

    def _module(self, name: object, text: object, temperature: object, prefix: str | None) -> Module:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise BadSetting(
                f"the name of a module cannot be {name!r}: it must be up to 100 letters, digits, dots, hyphens or "
                "underscores"
            )
        if not isinstance(temperature, int | float) or not LOWEST_TEMPERATURE <= temperature <= 1 / LOWEST_TEMPERATURE:
            most = 1 / LOWEST_TEMPERATURE
            raise BadSetting(
                f"the temperature of a module cannot be {temperature!r}: it must be {LOWEST_TEMPERATURE} to {most:g}"
            )
        if not isinstance(text, str):
            raise BadSetting(f"the module {name} must be a text, not {type(text).__name__}")
        if prefix is not None and not isinstance(prefix, str):
            raise BadSetting(f"the prefix of the module {name} must be a text, not {type(prefix).__name__}")
        before = self._prefix() if prefix is None else self._tokenizer.encode(prefix)
        tokens = self._tokenizer.encode(text, add_special=False, parse_special=False, goes_on=bool(before))
        if not tokens:
            raise BadSetting(f"the module {name} is empty; give it some text")
        n_tokens = len(before) + len(tokens)
        if n_tokens >= self._n_context:
            raise ContextOverflow(
                f"the module {name} has {len(tokens)} tokens, and {len(before)} before them; the context holds "
                f"{self._n_context}, with what is asked about it: shorten it, or load the model with a larger context "
                "(--ctx, n_context)",
                n_tokens,
                self._n_context,
            )
        return Module(name, tuple(tokens), tuple(before), float(temperature))
