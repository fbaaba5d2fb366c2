"""Pictures in pixels: which protocol the terminal draws them by, and what is written to it."""
