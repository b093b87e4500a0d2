"""Engines side by side: each in a process of its own, one of them running at a time."""
