"""Benchmarks that compare two things in one run and print the ratio: absolute times say more about the machine."""
