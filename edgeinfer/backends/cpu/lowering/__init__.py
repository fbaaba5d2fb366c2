"""From ops to kernel calls: decisions from the header alone, and the calls of each kind of op."""
