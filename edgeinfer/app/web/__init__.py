"""The terminal app in a browser: one engine, and one process per tab that uses it."""

VARIABLE = "EDGEINFER_WEB_ENGINE"
"""Environment variable with the engine's address and key, read by the tab processes."""
