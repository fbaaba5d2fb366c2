"""Several devices for one model: which of them, and many sequences on an accelerator and the CPU."""

AUTO = "auto"
"""The schedule that is predicted to be fastest."""
