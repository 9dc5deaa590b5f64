"""Random faults against real processes and a real Postgres, and a checker of what they did to each row."""
