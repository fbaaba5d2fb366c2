"""shim"""

import numpy as np


def resized(pixels, size, kind):
    from PIL import Image as P

    return np.asarray(P.fromarray(pixels).resize((size[1], size[0]), getattr(P.Resampling, kind.upper())))


def normalised(pixels, mean, std):
    x = (pixels.astype(np.float64) * (1 / 255)).astype(np.float32)
    return (x - np.array(mean, np.float32)) / np.array(std, np.float32)
