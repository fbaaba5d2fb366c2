"""Metrics under the names that llama-server has, for dashboards made for it: counts of all models together.

In: stats of finished answers, counts of queues. Out: text in Prometheus format. Holds nothing but sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import QueueStats, Stats


@dataclass(slots=True)
class Totals:
    """Sums over finished answers. `n_read`: tokens of prompts, without those that had been read before.

    `n_passes`: of models that were closed. `told`: sums at the last look, as rates are of what came since.
    """

    n_read: int = 0
    n_cached: int = 0
    read_s: float = 0.0
    n_generated: int = 0
    generated_s: float = 0.0
    n_longest: int = 0
    n_proposed: int = 0
    n_accepted: int = 0
    n_drafts: int = 0
    n_passes: int = 0
    told: tuple[int, float, int, float] = (0, 0.0, 0, 0.0)

    def add(self, stats: Stats) -> None:
        """Count an answer."""
        self.n_read += stats.n_prompt - stats.n_cached
        self.n_cached += stats.n_cached
        self.read_s += stats.ttft_s or 0.0
        self.n_generated += stats.n_generated
        if stats.decode_tok_s:
            self.generated_s += (stats.n_generated - 1) / stats.decode_tok_s
        self.n_longest = max(self.n_longest, stats.n_prompt + stats.n_generated)
        if stats.draft is not None:
            self.n_drafts += stats.draft.n_passes - stats.draft.n_single
            self.n_proposed += stats.draft.n_proposed
            self.n_accepted += stats.draft.n_accepted

    def text(self, queues: Sequence[QueueStats]) -> str:
        """All metrics; `queues`: of the open models. Rates are of what came since the last call."""
        n_passes = self.n_passes + sum(queue.n_passes for queue in queues)
        told, self.told = self.told, (self.n_read, self.read_s, self.n_generated, self.generated_s)
        n_read, read_s, n_generated, generated_s = (now - before for now, before in zip(self.told, told, strict=True))
        n_busy = self.n_generated / n_passes if n_passes else 0.0
        rows = (
            ("prompt_tokens_total", "counter", "Tokens of prompts that were read.", self.n_read),
            ("prompt_tokens_cached_total", "counter", "Tokens of prompts that had been read before.", self.n_cached),
            ("prompt_seconds_total", "counter", "Seconds until first tokens.", self.read_s),
            ("tokens_predicted_total", "counter", "Tokens of answers.", self.n_generated),
            ("tokens_predicted_seconds_total", "counter", "Seconds after first tokens.", self.generated_s),
            ("n_decode_total", "counter", "Passes of the open models.", n_passes),
            ("n_tokens_max", "counter", "Tokens of the longest prompt with its answer.", self.n_longest),
            ("spec_decode_num_draft_tokens_total", "counter", "Tokens that were drafted.", self.n_proposed),
            ("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were right.", self.n_accepted),
            ("spec_decode_num_drafts_total", "counter", "Passes of answers with drafts.", self.n_drafts),
            (
                "prompt_tokens_seconds",
                "gauge",
                "Tokens of prompts a second, since the last look.",
                _rate(n_read, read_s),
            ),
            (
                "predicted_tokens_seconds",
                "gauge",
                "Tokens a second, since the last look.",
                _rate(n_generated, generated_s),
            ),
            ("requests_processing", "gauge", "Running requests.", sum(queue.n_active for queue in queues)),
            ("requests_deferred", "gauge", "Waiting requests.", sum(queue.n_waiting for queue in queues)),
            ("n_busy_slots_per_decode", "gauge", "Tokens of answers a pass.", n_busy),
        )
        return "".join(_row(f"llamacpp:{name}", kind, told, value) for name, kind, told, value in rows)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _row(name: str, kind: str, told: str, value: float) -> str:
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n{name} {value}\n"
