"""Modules that every other package uses: steps, codecs, argument checks, addresses, forks, stop requests, PostgreSQL
connections, Spark's JVM, the version.
"""
