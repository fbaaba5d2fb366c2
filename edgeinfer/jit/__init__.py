"""SIMD in Numba: vectors, instruction sets, and an on-disk cache of object code. Knows nothing of models."""
