"""What operators read from the Postgres store: no read scans a table."""
