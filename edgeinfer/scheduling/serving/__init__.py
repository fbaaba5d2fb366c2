"""Several answers in the making: whose turn it is, and how much of the next pass each gets."""
