"""What the targets of relays are made of."""
