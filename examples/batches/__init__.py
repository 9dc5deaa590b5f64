"""`python -m examples.batches`: a file of measurements, stored a thousand lines at a time, but for one line."""
