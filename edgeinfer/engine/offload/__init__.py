"""Weights that are not in memory: what stays pinned, bundle files, memory pressure, the order of neurons."""
