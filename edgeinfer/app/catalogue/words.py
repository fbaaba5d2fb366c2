"""Text that the catalogue shows: table cells, lines of detail, lines of progress.

In: `ModelEntry`, `Forecast`, `PullStatus`. Out: plain text without control characters. Knows no screen.
"""

from __future__ import annotations

from edgeinfer.app.catalogue.catalogue import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.own_projector import OwnProjector
from edgeinfer.app.catalogue.pulling import PullStatus
from edgeinfer.app.plain_text import harmless
from edgeinfer.app.step_clock import amount_text, duration, joined, rate_text
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.text_values import size_text

UNKNOWN = "?"


def one_line(text: str) -> str:
    """Text from a file or the network as one line."""
    return " ".join(harmless(text).split())


def state_word(entry: ModelEntry, status: PullStatus | None, current: str | None) -> str:
    """Where a model is, in at most eight characters."""
    if entry.path is not None:
        here = entry.place.replace(" ", "") or "here"
        return "in use" if entry.name == current else "unread" if entry.notice else here
    if status is None or status.state in ("done", "cancelled"):
        return "offer"
    if status.state in ("running", "stopping") and status.total_bytes:
        return f"{100 * status.done_bytes // status.total_bytes} %"
    return {"running": "asking", "refused": "no fit"}.get(status.state, status.state)


def name_word(entry: ModelEntry) -> str:
    """The name of a model, and what it reads besides text: "gemma + images, sound"."""
    media = entry.projector.media if entry.projector is not None else ""
    return f"{one_line(entry.name)} + {media}" if media else one_line(entry.name)


def size_word(entry: ModelEntry) -> str:
    """The size of a model."""
    return UNKNOWN if entry.nbytes is None else size_text(entry.nbytes)


def fit_word(found: Forecast | None) -> str:
    """Whether it fits: yes, disk (weights that do not fit in memory are read from disk in every pass), no."""
    if found is None:
        return UNKNOWN
    if not found.fits:
        return "no"
    return "disk" if found.streamed_bytes else "yes"


def fit_text(found: Forecast) -> str:
    """The same in full: fits, from disk, too large."""
    return {"yes": "fits", "disk": "from disk", "no": "too large"}[fit_word(found)]


def rate_word(found: Forecast | None) -> str:
    """Decode rate in tokens per second; predicted values have a tilde, measured ones do not."""
    if found is None:
        return UNKNOWN
    if found.measured.decode_tok_s is not None:
        return rate(found.measured.decode_tok_s)
    return UNKNOWN if found.decode_tok_s is None else f"~{rate(found.decode_tok_s)}"


def rate(tok_s: float) -> str:
    """A rate; at most four characters if below ten thousand."""
    return f"{tok_s:.0f}" if tok_s >= 10 else f"{tok_s:.2g}"


def context_word(n_context: int) -> str:
    """A context length: 2k, 8k, 1500."""
    return f"{n_context // 1024}k" if n_context % 1024 == 0 else str(n_context)


def why_not(found: Forecast) -> str:
    """Why a model does not fit, with the numbers."""
    if found.note:
        return one_line(found.note)
    return f"it needs {size_text(found.ram_bytes)} and {size_text(found.available_bytes)} are available"


def pull_line(status: PullStatus, width: int | None = None) -> str:
    """Progress of a pull, as all progress is shown; one that is not running says so."""
    is_running = status.state == "running"
    done, total = status.done_bytes, status.total_bytes or 0
    parts = [] if is_running and total else ["asking" if is_running else str(status.state)]
    parts += [amount_text(done, total, "bytes")] if done or total else []
    parts += [rate_text(status.bytes_per_s, "bytes")] if status.bytes_per_s and is_running else []
    parts += [] if status.eta_s is None else [f"about {duration(status.eta_s)} left"]
    return joined(one_line(status.source), parts, min(1.0, done / total) if total else None, width=width)


def _reads_line(projector: OwnProjector) -> str:
    return f"reads {projector.media or 'images'} {one_line(projector.text)}"


def detail_lines(entry: ModelEntry, found: Forecast | None) -> list[str]:
    """Everything known about a model."""
    place = f"{entry.place}: " if entry.place else ""
    lines = [f"{one_line(entry.name)} from {place}{one_line(entry.source)}"]
    if found is None:
        return [*lines, "nothing is known of it yet; i looks at its header, Enter fetches it"]
    facts = [
        one_line(found.title),
        one_line(found.architecture),
        f"{found.n_params / 1e6:.0f} M parameters" if found.n_params else "",
        entry.quant or "",
        f"licence {one_line(found.licence)}" if found.licence else "",
        f"trained for a context of {found.n_context_trained}" if found.n_context_trained else "",
    ]
    lines.append(", ".join(fact for fact in facts if fact) or "its header says nothing of it")
    lines += [] if entry.nbytes is None else [f"file: {size_text(entry.nbytes)}"]
    lines += [] if entry.projector is None else [_reads_line(entry.projector)]
    lines.append(_memory_line(found))
    if entry.bundle_bytes:
        lines.append(f"packed weights on the disk: {size_text(entry.bundle_bytes)}")
    if found.streamed_bytes:
        lines.append(f"reads {size_text(found.streamed_bytes)} of weights from disk for every token")
    lines += _speed_lines(found)
    if found.plan:
        lines.append(f"plan: {found.plan}")
    if found.note:
        lines.append(f"note: {one_line(found.note)}")
    return lines


def _memory_line(found: Forecast) -> str:
    sizes = found.weight_bytes, 0, found.kv_bytes, found.buffer_bytes, found.n_context
    need = MemoryNeed(*sizes, draft_bytes=found.draft_bytes)
    return (
        f"memory: {size_text(found.ram_bytes)} of {size_text(found.available_bytes)} available at a context of "
        f"{found.n_context} ({need.parts_text}); fits: {fit_word(found)}"
    )


def _speed_lines(found: Forecast) -> list[str]:
    lines, measured = [], found.measured
    if found.decode_tok_s is not None:
        full = f", {rate(found.full_decode_tok_s)} with a full context" if found.full_decode_tok_s else ""
        prefill = f"; prompts {rate(found.prefill_tok_s)}" if found.prefill_tok_s else ""
        bound = f"; bound by {found.bound_by}" if found.bound_by else ""
        lines.append(f"predicted: {rate(found.decode_tok_s)} tok/s{full}{prefill}{bound}")
    if measured.decode_tok_s is not None:
        length = "" if measured.n_prompt is None else f" of {measured.n_prompt} tokens"
        prompts = "" if measured.prefill_tok_s is None else f"; prompts{length} {rate(measured.prefill_tok_s)}"
        lines.append(f"measured: {rate(measured.decode_tok_s)} tok/s{prompts}")
    return lines
