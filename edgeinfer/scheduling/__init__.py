"""Decides WHERE and WHEN work runs: numbers in, a plan out. No arrays, no compiler, no devices."""
