"""Where bytes are kept.

`objects` keys to bytes, with conditional writes · `files` disks, syncs and locks · `kv` ordered maps with one atomic
commit.
"""
