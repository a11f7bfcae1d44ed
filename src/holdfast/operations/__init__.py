"""Operations on pipelines, indexes and projections from outside: first a plan, then `apply()`."""
