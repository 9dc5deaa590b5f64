"""The base of every background part: a loop, time limits, and the way to the log and the metrics."""
