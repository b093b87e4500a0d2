"""A pretended accelerator that Triton compiles for: the host stands in for it, under Triton's interpreter."""
