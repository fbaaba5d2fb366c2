"""Benchmarks of this engine beside others: requests, processes, rounds of runs, figures, reports."""
