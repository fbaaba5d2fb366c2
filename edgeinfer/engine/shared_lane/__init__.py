"""A model on several devices as one lane: fragments, their order, and the timeline of a step."""
