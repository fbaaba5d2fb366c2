"""Fetching large files: ranges, resume, checksums, reading a header before its body. Independent of the store."""
