"""A model on several devices at once: what each runs, in which order, and the lane that does it."""

AUTO = "auto"
"""The schedule that is predicted to be fastest."""
