"""Write the code books of the IQ formats, `edgeinfer/models/quants/codebooks.npz`, from the gguf package.

Run: `python scripts/make_codebooks.py` (needs the gguf package). Each array is int8[entries, weights of an entry].
Source: the grids of ggml-common.h, as the gguf package has them.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

OUT = Path(__file__).parents[1] / "edgeinfer/models/quants/codebooks.npz"
FORMATS = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def main() -> None:
    books = {}
    for name in FORMATS:
        form = getattr(gguf.quants, name)
        form.init_grid()
        grid = form.grid.reshape(form.grid_shape)
        books[name.lower()] = grid.astype(np.int8)
        assert np.array_equal(books[name.lower()], grid)
    np.savez_compressed(OUT, **books)


if __name__ == "__main__":
    main()
