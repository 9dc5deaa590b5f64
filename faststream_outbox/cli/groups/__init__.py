"""The commands of operators, one file for each group of them."""
