"""Widgets, one family per file."""
