"""What a pass computes for each byte that it reads, and how fast a device could compute: the sides of a roofline.

In: the work of a model, tokens of a pass, a device's rates. Out: multiply-adds and bytes; multiply-adds per second. No
times: those are in `seconds`.
"""

from __future__ import annotations

from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import DeviceRates


def mean_pass_work(work: ModelWork, n_tokens: float, n_cached: float, n_outputs: float, kv: str) -> tuple[float, float]:
    """Multiply-adds, and bytes of weights and cache, of a mean pass over `n_tokens` with `n_cached` before them."""
    madds = n_bytes = 0.0
    for stage in work.stages:
        n_computed = n_outputs if stage.shape.for_outputs else n_tokens
        for product in stage.shape.products:
            madds += product.n_weights * product.share_used * n_computed
            n_bytes += product.n_bytes * product.share_read(max(1, round(n_computed))) * min(1.0, n_computed)
        heads = stage.shape.attention
        if heads is not None:
            tokens, cached = max(1, round(n_tokens)), round(n_cached)
            madds += heads.multiply_adds(tokens, cached) * n_tokens / tokens
            n_bytes += heads.reach(tokens, cached) * heads.kv_bytes_per_token(KV_ELEMENT_BYTES[kv])
    return madds, n_bytes


def best_madds_s(work: ModelWork, rates: DeviceRates) -> float | None:
    """Multiply-adds per second at a device's best rates of the model's weight formats, weighted by their shares."""
    seconds = n_weights = 0.0
    for stage in work.stages:
        for product in stage.shape.products:
            if not rates.products:
                return None
            n_weights += product.n_weights
            seconds += product.n_weights / rates.product(product.form, product.bytes_per_weight).best
    return n_weights / seconds if seconds else None
