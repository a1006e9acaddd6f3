"""Batches of small and medium matrices: one launch for a whole batch."""
