"""Criteria of models as one operator each, with their gradient in closed form: one file per function."""

__all__: list[str] = []
