"""Programs cut into pieces, and pieces made into fewer calls."""
