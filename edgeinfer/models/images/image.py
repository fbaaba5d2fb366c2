"""shim"""

import hashlib
import io

import numpy as np


class Image:
    def __init__(self, src):
        if isinstance(src, np.ndarray):
            self._p = src
            self.key = hashlib.sha256(src.tobytes()).hexdigest()
        else:
            from PIL import Image as P

            data = src if isinstance(src, bytes) else open(src, "rb").read()
            self.key = hashlib.sha256(data).hexdigest()
            self._p = np.asarray(P.open(io.BytesIO(data)).convert("RGB"))

    @classmethod
    def of(cls, v):
        return v if isinstance(v, cls) else cls(v)

    @property
    def size(self):
        return self._p.shape[1], self._p.shape[0]

    def pixels(self):
        return self._p
