"""Updates the meters: at most twice a second while text arrives, and at the end of an answer.

In: the engine's figures. Out: the meter line. There is no timer, so an idle app does no work.
"""

from __future__ import annotations

import time
from dataclasses import replace

from edgeinfer.app.sessions.records import Figures
from edgeinfer.app.tui.messages import PromptRead
from edgeinfer.app.tui.screens.chat_parts import ChatParts
from edgeinfer.app.tui.widgets.chat_bars import MeterFigures

BETWEEN_S = 0.5


class Metering(ChatParts):
    """Mixin of the chat screen: the meters."""

    def on_prompt_read(self, event: PromptRead) -> None:
        """Show the progress of prefill."""
        event.stop()
        if self.writing is None or self.is_metered():
            return
        progress = (event.done, event.total) if event.done < event.total else None
        self.show_meters(replace(self.metered, prompt=progress))

    def meter_answer(self) -> None:
        """Show the figures of the running request."""
        if self.is_metered() or (live := self.engine.live) is None:
            return
        self.show_meters(
            MeterFigures(
                decode_tok_s=live.decode_tok_s,
                prefill_tok_s=live.prefill_tok_s,
                n_used=live.n_prompt + live.n_generated,
                accepted_per_step=live.accepted_per_step,
            )
        )

        if self.state.model is not None and self.writing is not None and not self.writing.is_summary:
            self.context_bar.show(live.n_prompt + live.n_generated, 0, self.state.model.info.n_context)

    def show_figures(self, figures: Figures | None) -> None:
        """Show the figures of a finished answer; without figures, only memory and context."""
        self.show_meters(
            MeterFigures()
            if figures is None
            else MeterFigures(
                decode_tok_s=figures.decode_tok_s,
                prefill_tok_s=figures.prefill_tok_s,
                n_used=figures.n_prompt + figures.n_generated,
                accepted_per_step=figures.accepted_per_step,
                joules_per_token=figures.joules_per_token,
            )
        )

    def show_meters(self, figures: MeterFigures) -> None:
        """Update the meters with these figures, completed by context and memory."""
        model, readings = self.state.model, self.engine.readings
        if model is not None:
            figures = replace(figures, n_context=model.info.n_context)
        if readings is not None:
            process_bytes, kv_bytes = readings.taken()
            figures = replace(figures, ram_bytes=process_bytes, kv_bytes=kv_bytes)
        self.metered, self.metered_s = figures, time.monotonic()
        self.meters.show(figures)

    def is_metered(self) -> bool:
        """Whether the meters were updated less than BETWEEN_S ago."""
        return time.monotonic() - self.metered_s < BETWEEN_S
