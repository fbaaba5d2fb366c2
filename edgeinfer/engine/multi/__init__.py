"""Several devices for one model: how they share it, and many sequences on an accelerator and the CPU."""

AUTO = "auto"
"""The schedule with the lowest predicted time."""
