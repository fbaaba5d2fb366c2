"""What `auto` means for a model: devices are timed once, in separate processes, and the fastest is remembered."""
