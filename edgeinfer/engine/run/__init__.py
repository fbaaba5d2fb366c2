"""Running a model on devices: the executor, the evaluators around it, and sequences that continue."""
