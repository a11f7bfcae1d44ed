"""Which options of a source may change without a question."""

from __future__ import annotations

import pytest

from holdfast.pipeline.query.source_options import can_read_last_files, have_same_offsets, is_tuning

MAY_CHANGE = {
    "kafka": [
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "kafka.bootstrap.servers",
        "kafka.group.id",
        "kafka.request.timeout.ms",
        "kafka.sasl.jaas.config",
        "kafka.security.protocol",
        "kafka.ssl.truststore.location",
        "groupIdPrefix",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "minPartitions",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    ],
    "rate": ["rowsPerSecond", "rampUpTime", "numPartitions"],
    "rate-micro-batch": ["rowsPerBatch", "startTimestamp"],
    "json": [
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
        "latestFirst",
        "maxFileAge",
        "cleanSource",
        "ignoreMissingFiles",
    ],
    "holdfast_events": ["max_events_per_trigger", "events_per_partition", "partitions", "from"],
    "delta": ["maxFilesPerTrigger", "startingVersion"],
    "my_own": ["maxRowsPerTrigger", "connectTimeoutMs", "retries", "failOnDataLoss"],
}
IS_IDENTITY = {
    "kafka": ["subscribe", "subscribePattern", "assign", "includeHeaders", "kafka.isolation.level", "unheard.of"],
    "rate-micro-batch": ["advanceMillisPerBatch"],
    "json": ["path", "multiLine", "timestampFormat", "fileNameOnly", "rowsPerSecond", "kafka.group.id"],
    "csv": ["sep", "header"],
    "socket": ["host", "port", "includeTimestamp"],
    "holdfast_events": ["url", "prefix", "until"],
    "my_own": ["table", "rowsPerSecond", "kafka.group.id", "path"],
}


@pytest.mark.parametrize(("connector", "option"), [(one, name) for one, names in MAY_CHANGE.items() for name in names])
def test_how_it_is_read_may_change(connector: str, option: str) -> None:
    assert is_tuning(connector, option)
    assert is_tuning(connector.upper(), option.upper())


@pytest.mark.parametrize(("connector", "option"), [(one, name) for one, names in IS_IDENTITY.items() for name in names])
def test_what_is_read_may_not(connector: str, option: str) -> None:
    assert not is_tuning(connector, option)


def test_a_connector_by_the_name_of_its_class() -> None:
    assert is_tuning("org.apache.spark.sql.kafka010.KafkaSourceProvider", "kafka.group.id")


def test_offsets_of_files_are_the_same_in_all_formats() -> None:
    assert have_same_offsets("json", "CSV")
    assert have_same_offsets("kafka", "Kafka")
    assert not have_same_offsets("json", "rate")
    assert not have_same_offsets("rate", "rate-micro-batch")


@pytest.mark.parametrize(
    ("before", "now", "can"),
    [
        ("/data/orders", "/data/refunds", False),
        ("/data/orders", "/data", True),
        ("/data/orders", "/data/orders/new", False),
        ("/data/orders", "/data/order", False),
        ("/data/orders", "/data/orders/", True),
        ("/data/orders", "file:///data/orders", True),
        ("/data/orders", "/data/o*", True),
        ("s3a://b/orders", "s3a://b/", True),
        ("s3a://b/orders", "s3a://c/", False),
        (None, "/data", True),
    ],
)
def test_a_path_that_the_last_files_are_below(before: str | None, now: str, can: bool) -> None:
    assert can_read_last_files(before, now) == can
