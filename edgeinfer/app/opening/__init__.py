"""Opening a model: which one, how its opening is shown, and what follows the first answer."""
