"""Running image encoders beside a language model."""
