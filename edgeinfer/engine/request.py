"""What is asked of a generation: the prompt as tokens, how tokens are chosen, and when to stop.

In: plain values. Out: one frozen `Request`, which knows whether it can be met. Knows no text and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from edgeinfer.backends.base import Progress, no_progress
from edgeinfer.engine.sampling import SamplingSettings
from edgeinfer.errors import BadSetting, ContextOverflow

REQUEST_KEYS = ("max_tokens", "stop", "progress")


class Options(TypedDict, total=False):
    """How to answer: the fields of `SamplingSettings`, and when to stop."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: dict[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    progress: Progress


@dataclass(frozen=True, slots=True)
class Request:
    """What to continue and how.

    `continues_text`: the answer goes on within the prompt's text, so that its first space is its own. `notices`: what
    was already left out of the prompt to make it fit, if anything.
    """

    prompt: tuple[int, ...]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    continues_text: bool = False
    notices: tuple[str, ...] = ()
    progress: Progress = no_progress

    def check(self, n_context: int) -> None:
        """Raises BadSetting for an impossible request, ContextOverflow for a prompt that cannot fit."""
        if not self.prompt:
            raise BadSetting("the prompt has no tokens; give some text to continue")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadSetting(f"max_tokens cannot be {self.max_tokens}: it must be 1 or more")
        if len(self.prompt) > n_context:
            raise ContextOverflow(
                f"the prompt has {len(self.prompt)} tokens and the context holds {n_context}; shorten it, "
                "or load the model with a larger context (--ctx, n_context)"
            )


def request_of(
    prompt: tuple[int, ...], options: Options, *, continues_text: bool = False, notices: tuple[str, ...] = ()
) -> Request:
    """A prompt with options. Raises BadSetting for options there are not, or that cannot be."""
    stop = options.get("stop", ())
    for name in options:
        if name not in Options.__annotations__:
            raise BadSetting(f"there is no option {name!r}; there are: {', '.join(Options.__annotations__)}")
    sampling = {name: value for name, value in options.items() if name not in REQUEST_KEYS}
    return Request(
        prompt=prompt,
        sampling=SamplingSettings(**sampling),  # type: ignore[arg-type]
        max_tokens=options.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        continues_text=continues_text,
        notices=notices,
        progress=options.get("progress", no_progress),
    )
