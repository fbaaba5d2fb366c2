"""Kernels of the CPU device, one file per kind of op."""
