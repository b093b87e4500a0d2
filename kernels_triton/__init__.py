"""Portable Triton kernels, for every device Triton compiles for. Tables of GPU platforms point here."""
