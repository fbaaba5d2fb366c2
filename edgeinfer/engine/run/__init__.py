"""Running a model on devices: the executor, other evaluators, and cached sequences that can be continued."""
