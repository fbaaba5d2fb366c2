"""Images: decoded within limits, resized, cut into patches. Knows no model and no device."""
