"""Sound: from files and arrays to samples, and from samples to the inputs of encoders."""
