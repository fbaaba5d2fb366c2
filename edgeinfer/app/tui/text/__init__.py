"""Parses and draws the text of models for the terminal."""
