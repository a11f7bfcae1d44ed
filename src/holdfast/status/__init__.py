"""Status of checkpoint stores, indexes and event stores, for the command line and programs. Read only."""
