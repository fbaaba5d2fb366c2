"""Mixins that make up the chat screen, one subject per file."""
