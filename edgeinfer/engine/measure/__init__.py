"""Measurements of this machine while models run: profiles, power, load, and the time of answers."""
