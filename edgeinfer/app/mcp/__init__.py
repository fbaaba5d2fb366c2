"""Tools of MCP servers: which servers the user has, connections to them, and answers that call their tools."""
