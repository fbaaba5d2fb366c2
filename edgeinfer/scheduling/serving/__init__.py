"""Several running requests: their order, and how much of the next pass each gets."""
