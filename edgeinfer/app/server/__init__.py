"""The local HTTP server with an OpenAI-compatible API. Does not depend on the terminal app."""
