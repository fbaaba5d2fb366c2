"""Drafting tokens and checking several of them in one pass, without changing any of them."""
