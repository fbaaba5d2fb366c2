"""Several answers to one request, as pure numbers: votes, weights of paths, when to stop, what to keep, budgets."""
