"""HOW ops run on one device."""
