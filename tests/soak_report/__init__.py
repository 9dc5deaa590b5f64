"""All soaks, one after the other or side by side, and the page of the documentation that says what they did."""
