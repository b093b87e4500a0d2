"""Callers of the compiled kernels: one function per row, with its op's signature."""
