"""What a model is: file formats, quant formats, architectures, text. Runs no models."""
