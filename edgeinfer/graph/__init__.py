"""The contract between models and devices: a model's computation as ops, each with a defined meaning and cost."""
