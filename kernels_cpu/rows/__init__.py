"""Rows of compiled kernels, by family. Standard library only."""
