"""Weights that are not in memory: what stays pinned, bundle files, memory pressure, plans for layers of records."""
