"""WHAT a model is: file formats, quant formats, architectures, text. Nothing here runs a model."""
