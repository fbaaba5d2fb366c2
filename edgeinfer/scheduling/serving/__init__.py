"""Several running requests: whose turn it is, and how much of the next pass each gets."""
