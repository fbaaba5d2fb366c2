"""Measuring this engine beside others: cases, processes, rounds of runs, figures, tables."""
