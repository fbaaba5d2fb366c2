"""What an answer read from disk of weights that do not stay in memory, as lines of text or as a record.

In: a model's read counters before and after an answer, and the seconds between. Out: text, or plain values; nothing if
nothing was read. Measures nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.plain_text import counted

if TYPE_CHECKING:
    from edgeinfer.offload.weights import WeightReads


def read_since(before: WeightReads, now: WeightReads) -> WeightReads:
    """What was read between two moments."""
    from edgeinfer.offload.weights import WeightReads

    counts = {size: count - before.sizes.get(size, 0) for size, count in sorted(now.sizes.items())}
    return WeightReads(
        now.n_bytes - before.n_bytes,
        now.waited_s - before.waited_s,
        now.n_passes - before.n_passes,
        {size: count for size, count in counts.items() if count},
        now.n_wanted - before.n_wanted,
        now.n_found - before.n_found,
        now.n_guessed - before.n_guessed,
        now.n_proved - before.n_proved,
        now.read_s - before.read_s,
        now.n_records_read - before.n_records_read,
        now.record_dense_bytes - before.record_dense_bytes,
        now.record_token_bytes - before.record_token_bytes,
        now.record_pass_bytes - before.record_pass_bytes,
        now.record_read_bytes - before.record_read_bytes,
        n_activations=now.n_activations - before.n_activations,
        n_kept=now.n_kept - before.n_kept,
    )


def skipped_share(reading: WeightReads) -> float | None:
    """Share of activations cut at a threshold, so that their neurons were skipped; None without a threshold."""
    return 1 - reading.n_kept / reading.n_activations if reading.n_activations else None


def skipped_lines(reading: WeightReads, threshold: float | None) -> list[str]:
    """`skipped_share` as text."""
    share = skipped_share(reading)
    if share is None or threshold is None:
        return []
    return [f"approx {threshold:g}: {100 * share:.1f} % of neurons left out"]


def reading_record(reading: WeightReads, seconds: float) -> dict[str, object] | None:
    """What was read in `seconds`; None for nothing. Reads continue between passes, so bytes per pass are a mean."""
    if not reading.n_passes:
        return None
    return {
        "passes": reading.n_passes,
        "bytes": reading.n_bytes,
        "bytes_per_pass": reading.n_bytes / reading.n_passes,
        "gb_s": reading.n_bytes / reading.read_s / 1e9 if reading.read_s else None,
        "waiting_share": min(1.0, reading.waited_s / seconds) if seconds else None,
        "reads_by_size": {str(size): count for size, count in reading.sizes.items()},
        "wanted": reading.n_wanted,
        "found": reading.n_found,
        "guessed": reading.n_guessed,
        "proved": reading.n_proved,
        "neurons": _neurons(reading),
    }


def _neurons(reading: WeightReads) -> dict[str, object] | None:
    """Bytes left to read after each technique, in layers with zeros in their activations; None without such layers.

    All neurons in every pass; those that fire, for each token separately; those that fire for any token of a pass; of
    these, those not in memory; and what was actually read, including everything on the same pages and in gaps between
    close ones.
    """
    if not reading.record_dense_bytes:
        return None
    return {
        "dense_bytes": reading.record_dense_bytes,
        "firing_bytes": reading.record_token_bytes,
        "union_bytes": reading.record_pass_bytes,
        "missing_bytes": _missing_bytes(reading),
        "read_bytes": reading.record_read_bytes,
        "neurons_read": reading.n_records_read,
    }


def _missing_bytes(reading: WeightReads) -> int:
    """Bytes of the neurons that had to be read."""
    return round(reading.record_pass_bytes * reading.n_records_read / max(1, reading.n_wanted))


def reading_lines(reading: WeightReads, seconds: float) -> list[str]:
    """`reading_record` as text."""
    if not reading.n_passes:
        return []
    rate = f", {reading.n_bytes / reading.read_s / 1e9:.2f} GB/s while reading" if reading.read_s else ""
    waiting = f", {100 * min(1.0, reading.waited_s / seconds):.0f} % of the time waiting for it" if seconds else ""
    sizes = ", ".join(f"{count} of {size / 2**20:.2f} MiB" for size, count in _classes(reading).items())
    n_passes = counted(reading.n_passes, "pass", "passes")
    lines = [
        f"disk: {reading.n_bytes / reading.n_passes / 1e6:.1f} MB a pass in {n_passes}{rate}{waiting}",
        f"reads: {sizes}",
    ]
    if reading.record_dense_bytes:
        dense, firing, union, missing, read = (
            f"{n_bytes / reading.n_passes / 1e6:.1f} MB"
            for n_bytes in (
                reading.record_dense_bytes,
                reading.record_token_bytes,
                reading.record_pass_bytes,
                _missing_bytes(reading),
                reading.record_read_bytes,
            )
        )
        lines.append(
            f"neurons a pass: {dense} of all, {firing} fire, token by token, {union} without those that fire for "
            f"several, {missing} without those in memory, {read} read with what lies between"
        )
    elif reading.n_wanted:
        share, guesses = 100 * reading.n_found / reading.n_wanted, f"{reading.n_proved} of {reading.n_guessed}"
        lines.append(
            f"in memory: {share:.0f} % of {counted(reading.n_wanted, 'wanted piece')}; {guesses} guesses were right"
        )
    return lines


def _classes(reading: WeightReads) -> dict[int, int]:
    """Counts of reads grouped by size within a factor of two, under the largest size of each group."""
    found: dict[int, int] = {}
    for size in sorted(reading.sizes, reverse=True):
        upper = next((each for each in found if 2 * size > each), size)
        found[upper] = found.get(upper, 0) + reading.sizes[size]
    return dict(sorted(found.items()))
