"""SIMD in Numba: vectors, instruction sets, object code kept on disk. Knows nothing of models."""
