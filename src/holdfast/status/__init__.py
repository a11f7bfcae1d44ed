"""What there is to see in a checkpoint store, an index and a store of events. Nothing here changes anything."""
