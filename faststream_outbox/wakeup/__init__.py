"""LISTEN and NOTIFY: tells subscribers, in this process and in others, that rows have been committed."""
