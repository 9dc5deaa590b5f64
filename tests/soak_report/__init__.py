"""All soaks one after the other, and the page of the documentation that says what they did."""
