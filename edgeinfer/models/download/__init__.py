"""Fetching large files: ranges, resume, checksums, looking at a header before its body. Knows nothing of the store."""
