"""Single neurons that are read from a bundle file on demand, and those that stay in memory."""
