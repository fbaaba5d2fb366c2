"""Records of kernels over equal parts of rows, and over whole rows by their mean; see `records`.

In: nothing. Out: dtypes. Loads no compiler.
"""

from __future__ import annotations

import numpy as np

PARTS = np.dtype(
    [
        ("source", "i8"),
        ("source_stride", "i8"),  # bytes, as all strides
        ("factors", "i8"),  # 0: none
        ("factors_stride", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),
        ("parts", "i8"),
        ("first", "i8"),  # part that is changed
        ("part_bytes", "i8"),
        ("count", "i8"),
    ]
)
"""Record of `kernels.parts`; vectors of a part are `part_bytes` / 64."""

MATCH_MAGNITUDE = np.dtype(
    [
        ("value", "i8"),
        ("value_stride", "i8"),
        ("target", "i8"),
        ("target_stride", "i8"),
        ("n_vectors", "i8"),
        ("count", "i8"),
        ("width", "f4"),
        ("least", "f4"),
    ]
)
"""Record of `kernels.spread.match_magnitude`."""

KEEP_HIGHEST = np.dtype(
    [
        ("value", "i8"),
        ("stride", "i8"),
        ("n_vectors", "i8"),
        ("last", "i8"),  # columns of the last vector
        ("count", "i8"),
        ("width", "f4"),
        ("deviations", "f4"),
    ]
)
"""Record of `kernels.spread.keep_highest`."""
