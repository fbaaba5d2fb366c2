"""Which weights stay in memory, and what reading the others costs."""
