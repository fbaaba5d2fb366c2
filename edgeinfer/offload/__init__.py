"""Weights that do not stay in memory: bundles read from a file, for any device."""
