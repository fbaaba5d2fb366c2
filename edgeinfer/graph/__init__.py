"""The contract between models and devices: what a model computes, as ops that say what they mean and what they cost."""
