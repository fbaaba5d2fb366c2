"""Kernels of matrix products over panels, and the rounding of activations before them."""
