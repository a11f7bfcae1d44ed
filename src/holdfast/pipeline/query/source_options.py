"""Which options of a source say what is read, and which only how: how fast, from which broker, as whom."""

from __future__ import annotations

import re

_ANYWHERE = re.compile(
    r"(?:max|min)(?:files|bytes|offsets|rows|records|events|messages)pertrigger|maxtriggerdelay|failondataloss"
    r"|starting(?:offsets?|timestamp|version|position)(?:by\w+)?|starting\w*strategy|.*timeout(?:ms)?|.*retr(?:y|ies).*"
)
_OF_FILES = re.compile(
    r"maxfileage|latestfirst|maxcachedfiles|discardcachedinputratio|cleansource|sourcearchivedir"
    r"|ignore(?:corrupt|missing)files|spark\.sql\.files\.ignore(?:corrupt|missing)files"
)
_OF_RATE = re.compile(r"rowspersecond|rowsperbatch|rampuptime|numpartitions|starttimestamp")
_OF_KAFKA = re.compile(
    r"kafka\.(?!isolation\.level$).+|groupidprefix|minpartitions|maxrecordsperpartition|fetchoffset\..+|kafkaconsumer\..+"
)
_OF_EVENTS = re.compile(r"from|max_events_per_trigger|events_per_partition|partitions|push_filters")
FILES = ("avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml")


def have_same_offsets(connector: str, other: str) -> bool:
    """Whether the one connector can go on from offsets of the other: Spark reads files of all formats in one way."""
    kinds = {connector.lower(), other.lower()}
    return len(kinds) == 1 or kinds <= {*FILES}


def can_read_last_files(before: str | None, now: str | None) -> bool:
    """Whether Spark can read files of the path before through the path now: from above, or by a pattern."""
    if before is None or now is None or re.search(r"[*?\[{]", now):
        return True
    old, new = (re.sub(r"^file:/+", "/", path).rstrip("/") + "/" for path in (before, now))
    return old.startswith(new)


def is_tuning(connector: str, option: str) -> bool:
    """Whether this option of a connector may change without a question: no part of what the source reads.

    Rate limits, addresses of brokers, timeouts, group ids, the place to begin, what to do about lost data. Of a
    connector that is not known here only options whose names say so.
    """
    name = option.lower()
    if _ANYWHERE.fullmatch(name):
        return True
    kind = connector.lower()
    if kind in FILES:
        return _OF_FILES.fullmatch(name) is not None
    if kind.startswith("rate"):
        return _OF_RATE.fullmatch(name) is not None
    if kind.startswith("kafka") or kind.endswith("kafkasourceprovider"):
        return _OF_KAFKA.fullmatch(name) is not None
    return kind == "holdfast_events" and _OF_EVENTS.fullmatch(name) is not None
