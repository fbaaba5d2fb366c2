"""Kernels of feed-forward layers that compute only active neurons, and the layout of these neurons in memory."""
