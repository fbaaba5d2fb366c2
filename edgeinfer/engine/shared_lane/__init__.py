"""One lane for a model on several devices: fragments, their order, and the timeline of a step."""
