"""Messages with a key under random faults: real brokers in processes that die, and the rules that their order keeps."""
