"""`python -m examples.relay`: a relay sends the movements of accounts to Kafka; a reader gets them in order."""
