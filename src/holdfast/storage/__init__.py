"""Where bytes are kept: `objects` keys to bytes, with conditional writes · `files` disks, syncs and locks."""
