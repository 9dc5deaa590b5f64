"""Faults of Kafka that concern one topic, one partition or one message."""
