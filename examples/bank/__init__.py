"""`python -m examples.bank`: money that is moved by messages, each exactly once, whatever fails on the way.

What `move` and `notify` write through their session, the messages that they send on and the deletion of the message
that they handle are one transaction: a transfer is moved, entered in the ledger and notified once, or not at all.
The limits: it holds for what is written through that session, in the database of the outbox; a mail sent, a file
written or a service called in a handler is done again when the handler runs again.
"""
