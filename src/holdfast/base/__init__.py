"""What everything else uses: steps, codecs, argument checks, addresses, forks, stopping, PostgreSQL connections,
Spark's JVM.
"""
