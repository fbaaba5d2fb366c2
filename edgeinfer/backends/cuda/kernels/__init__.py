"""Kernels of the CUDA device, one concern per file: each factory makes one compiled kernel for given constants.

A kernel's docstring is its memory contract. All arrays are flat and C-contiguous; `tokens` is how many rows of a pass
there are. Every sum has an order that depends on the row and the token alone. Imported only once Numba CUDA is there.
"""
