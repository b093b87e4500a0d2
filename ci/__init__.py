"""The matrix of hardware that is tested: its rows, what renders them for a CI service, and what runs one anywhere."""
