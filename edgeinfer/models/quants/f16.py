"""F16: IEEE half floats. In: raw rows. Out: float32, exact."""

from __future__ import annotations

from edgeinfer.models.quants._bits import halves
from edgeinfer.models.quants._format import FloatFormat

FORMAT = FloatFormat(name="F16", ggml_type=1, block_size=1, block_bytes=2, decode=halves)
