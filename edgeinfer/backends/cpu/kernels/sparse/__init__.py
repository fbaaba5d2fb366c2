"""Kernels of feed-forward layers that compute only active neurons, and of thresholds."""
