"""The catalogue of models: which are on this machine, which can be pulled, whether they fit, how fast they would be."""
