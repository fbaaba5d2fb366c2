"""Models larger than memory: bundles that stay, and a window through which the others pass in every pass."""
