"""Programs to read and to run; the tests run them too."""
