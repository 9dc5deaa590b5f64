"""Write the outcomes of rows to the table, in batches."""
