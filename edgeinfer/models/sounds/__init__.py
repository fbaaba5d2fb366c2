"""Sounds: decoded within limits, to samples at 16 kHz. Knows no model and no device."""
