"""Image encoders as data: what a projector file's graph is made of, whatever its type. Runs nothing."""
