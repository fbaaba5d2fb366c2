"""Memory of sequences: KV pages, windows, states, saved bytes, and the text to read again after a failure."""
