"""Measurements for users: of this engine in a program, of its start, and of any server that speaks the OpenAI API."""
