"""Layers whose inactive neurons are neither computed nor read from disk; the device knows `storage` alone."""
