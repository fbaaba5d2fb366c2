"""What is asked of a generation: the prompt as tokens, how tokens are chosen, and when to stop.

In: plain values. Out: one frozen `Request`, which knows whether it can be met. Knows no text and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeinfer.backends.base import Progress, no_progress
from edgeinfer.engine.sampling import SamplingSettings
from edgeinfer.errors import BadSetting, ContextOverflow


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
