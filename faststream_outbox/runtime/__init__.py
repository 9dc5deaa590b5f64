"""What every background part is made of: a loop, time limits, and a way to report what happens."""
