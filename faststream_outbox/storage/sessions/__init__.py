"""What a caller publishes through: connections of drivers, and the commits of sessions."""
