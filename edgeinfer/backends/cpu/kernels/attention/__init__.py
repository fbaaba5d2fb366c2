"""Attention kernels: pages, slots, rotation, scores, softmax, and writing new rows to the KV cache."""
