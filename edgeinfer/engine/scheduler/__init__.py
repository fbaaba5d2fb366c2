"""Many answers at a time: which of them take part in a pass, and what happens to its results."""
