"""Texts of models as the screen needs them."""
