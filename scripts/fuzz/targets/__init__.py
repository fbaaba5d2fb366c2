"""Readers to fuzz: a file has `seeds()`, valid inputs to begin with, and `run(data)`; it may raise EdgeInferError."""
