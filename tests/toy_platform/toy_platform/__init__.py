"""A pretended chip as a platform of engine."""
