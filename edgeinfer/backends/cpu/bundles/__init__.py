"""Bundle files: a model's matrices repacked into panels, in the order in which passes read them."""
