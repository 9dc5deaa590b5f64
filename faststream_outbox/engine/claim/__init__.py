"""Lease rows, keep their leases, and give back rows that wait too long."""
