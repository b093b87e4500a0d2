"""``/v1/responses``: answers as items, streamed as typed events, kept for the turns that follow."""
