"""What a device reaches, beside what it could: ``python -m benchmarks.device``. Every figure is a share of one that was
measured in the same run."""
