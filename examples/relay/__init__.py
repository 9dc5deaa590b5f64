"""`python -m examples.relay`: what happens to accounts is relayed to Kafka, and read there in its order."""
