"""Prefixes on disk: what was read of texts, kept for later answers and for other processes."""
