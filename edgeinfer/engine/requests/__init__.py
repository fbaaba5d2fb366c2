"""What is asked of a model: prompts, conversations, sampling, stops, tools."""
