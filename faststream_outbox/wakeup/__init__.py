"""LISTEN and NOTIFY: wakes subscribers, in this process and in others, when rows have been committed."""
