"""Compiled functions that pack weights, read them from files, and measure how fast memory is read."""
