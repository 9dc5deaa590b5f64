"""Write what became of rows back to the table, in batches."""
