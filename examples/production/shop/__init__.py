"""The service: `shop.web` publishes, `shop.worker` handles, and the relay is a program that needs no code."""
