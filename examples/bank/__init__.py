"""`python -m examples.bank`: messages move money, each exactly once, although handlers fail.

One transaction contains what `move` and `notify` write through their session, the messages that they publish, and the
deletion of the message that they handle. A transfer is moved, entered in the ledger and notified once, or not at all.
This covers only what goes through that session, in the database of the outbox. If a handler sends a mail, writes a
file or calls a service, it does so again when it runs again.
"""
