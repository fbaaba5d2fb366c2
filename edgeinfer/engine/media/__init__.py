"""Running encoders of images and sound beside a language model."""
