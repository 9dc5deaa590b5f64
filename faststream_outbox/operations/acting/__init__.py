"""The acts of operators, by what they are for."""
