"""Kernels of feed-forward layers of which only active neurons are computed, and of thresholds."""
