"""An epoch's rows in an index, with the position of every source, in one session.

`sink` the two moves · `rows` rows as keys and values · `sequences` which epoch a checkpoint stands for.
"""
