"""Many answers at a time: who takes part in a pass, and what becomes of it."""
