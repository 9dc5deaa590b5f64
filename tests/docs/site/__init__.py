"""The site that `make docs` builds: its links, its reference, its search, its diagrams."""
