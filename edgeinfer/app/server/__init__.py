"""The local server: an OpenAI-compatible face over HTTP. Knows nothing of the terminal app."""
