"""Local files: `disk` every call that makes them durable · `lock` one process at a time."""
