"""Kernels ahead of time: what the rows of a plan would start, made without a device."""
