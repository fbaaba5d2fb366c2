"""Plans for layers that are read by neurons: whether they are, how neurons fired in earlier runs, a better order."""
