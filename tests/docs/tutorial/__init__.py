"""The tutorial is followed from its own text: files are written, commands are run, and what they print is compared."""
