"""Speculative decoding: drafting tokens and verifying several in one pass, without changing any of them."""
