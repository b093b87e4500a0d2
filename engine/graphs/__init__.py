"""Graphs: which there are, what they read and write, whether work may be captured, and which one a step replays."""
