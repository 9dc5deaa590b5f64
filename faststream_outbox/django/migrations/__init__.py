"""The migrations, which create the tables with SQL."""
