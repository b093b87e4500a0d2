"""What is learnt by running kernels at start-up: their own choices of tiles, and which row of an op is faster."""
