"""Platforms with one fault each."""
