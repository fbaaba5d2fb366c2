"""What commands share: options, explanations of misuse, shell completion."""
