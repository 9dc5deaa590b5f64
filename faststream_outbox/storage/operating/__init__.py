"""What operators do with a store: filters, and the contracts of reads, acts, replays and pauses."""
