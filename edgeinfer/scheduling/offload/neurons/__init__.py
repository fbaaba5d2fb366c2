"""What reading single neurons costs, and how memory is divided between them and the rest of a model."""
