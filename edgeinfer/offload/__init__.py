"""Weights that are not in memory: bundles read from a file, whatever device computes with them."""
