"""Text under a constraint: grammars, JSON schemas, tool calls."""
