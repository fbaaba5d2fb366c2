"""The parts of the chat screen, one subject per file."""
