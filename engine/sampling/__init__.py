"""The parts of ``engine.sampler``. Imported by the worker only: every module here loads torch."""
