"""Benchmarks of this engine beside others: cases, processes, rounds of runs, figures, tables."""
