"""Key-value stores: ordered maps of bytes with atomic, durable commits. Indexes and stores of events use them."""
