"""Decoding many sequences with one accelerator: schedules, their predicted times, and workloads on a virtual clock."""
