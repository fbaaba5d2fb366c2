"""Plans of models: what runs where and how fast, whether it fits, and what was measured."""
