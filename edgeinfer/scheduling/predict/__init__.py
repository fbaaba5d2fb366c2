"""Predicted speeds of a whole model, and their correction by measured steps."""
