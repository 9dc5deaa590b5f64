"""The version, which the package and its build read."""

__version__ = "1.0.0"
