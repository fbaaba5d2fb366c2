"""Requests to a model: prompts, conversations, sampling, stop strings, tools."""
