"""Weights that are not in memory: what stays, bundle files, memory pressure, the order of neurons."""
