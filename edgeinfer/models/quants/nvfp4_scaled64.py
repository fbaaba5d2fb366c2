"""NVFP4 with a scale of the whole matrix, for rows that are no multiple of 256: every block of 64 weights repeats it.

Block, 40 bytes: float32 scale, four e4m3 scales of groups, then the groups' nibbles. See `nvfp4_scaled`.
"""

from __future__ import annotations

from edgeinfer.models.gguf.header import SCALED_TYPES
from edgeinfer.models.quants.nvfp4_scaled import scaled_format

FORMAT = scaled_format(SCALED_TYPES[1])
