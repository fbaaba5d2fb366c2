"""Runs a model: executor, KV cache, sessions, generation, sampling."""
