"""Local files: `disk` has every call that makes files durable, `lock` admits one process at a time."""
