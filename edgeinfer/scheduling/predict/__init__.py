"""What a whole model will do: speeds as predicted, and corrected by what steps took."""
