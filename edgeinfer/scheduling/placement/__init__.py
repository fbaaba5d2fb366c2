"""Places stages on a machine with several devices, chosen by predicted seconds."""
