"""What users of linear algebra ask for, in terms of the operators: one file per function."""

__all__: list[str] = []
