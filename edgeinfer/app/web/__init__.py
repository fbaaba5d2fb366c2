"""The terminal app in a browser: one engine, and a process for each tab that uses it."""

VARIABLE = "EDGEINFER_WEB_ENGINE"
"""The environment variable that tells a tab's process where the engine is, and with which key."""
