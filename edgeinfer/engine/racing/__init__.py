"""Which device `auto` means for a model: devices are compared once, in processes of their own, and the best is kept."""
