"""Kernels of attention: pages, slots, rotation, scores, softmax, and the new rows of the cache."""
