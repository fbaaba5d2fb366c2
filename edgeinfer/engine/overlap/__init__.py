"""One model on an accelerator and the CPU; each sequence has its KV cache on one of the two."""
