"""Where users look for what they import."""
