"""What the server answers, by subject: each module has a `router`."""
