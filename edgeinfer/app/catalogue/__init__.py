"""The catalogue of models: which are here, which could be fetched, whether they fit, how fast they would be."""
