"""The worker pool, the tape that it runs, and measurements of its time."""
