"""Opening what runs a model: a device by name, several by a plan, or another program."""
