"""`python -m examples.batches`: store a file of measurements, a thousand lines at a time, except one bad line."""
