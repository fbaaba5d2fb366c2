"""Kernels of the CUDA device, one concern per file. Each factory compiles one kernel for given constants.

A kernel's docstring is its memory contract. All arrays are flat and C-contiguous; `tokens` is the number of rows in a
pass. The order of every sum depends on the row and the token alone. Imported only once Numba CUDA is available.
"""
