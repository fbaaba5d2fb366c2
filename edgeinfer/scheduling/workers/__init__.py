"""Cores and workers: how many take part in a step, what share each gets, and how much of the machine may be used."""
