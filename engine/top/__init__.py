"""What `engine top` shows: two looks at ``/metrics`` and what happened between them."""
