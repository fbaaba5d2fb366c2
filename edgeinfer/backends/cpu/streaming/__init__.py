"""Models larger than memory: some bundles stay, and every pass streams the others through a window."""
