"""The statements of the doctor."""
