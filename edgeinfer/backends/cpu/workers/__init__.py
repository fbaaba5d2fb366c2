"""The worker pool, the tape that it runs, and what its time goes to."""
