"""Kernels of the host platform."""
