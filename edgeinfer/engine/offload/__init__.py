"""Weights that are not in memory: residency, bundle files, memory pressure, the order of neurons."""
