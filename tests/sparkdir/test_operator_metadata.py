"""Which state a batch loads: by what Spark writes of its operators. The layouts are those of Spark 4.3."""

from __future__ import annotations

import pytest

from holdfast.errors import Corrupt, Invalid
from holdfast.sparkdir.operator_metadata import parse_operator_metadata, stores_of_batch
from holdfast.sparkdir.state_files import UNDESCRIBED, missing_files, partition_versions
from workdir_files import commit_log, offset_log, operator_metadata

METADATA = "state/0/_metadata/metadata"
SIDES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
KEYED = b'\x00\x02v2\x00\x00\x00\x01\x00X{"type":"struct","fields":[{"name":"k","type":"integer"}]}'
KEYLESS = b'\x00\x02v2\x00\x00\x00\x01\x00\x1d{"type":"struct","fields":[]}\x00\x00\x00\x01\x00W{}'
IDS = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["3f-a"],["5c-b"]]}}'


def workdir(batch_id: int, *described: tuple[str, str | bytes], partitions: int = 2) -> dict[str, bytes]:
    """The logs that running a batch needs, and what describes its state."""
    files: dict[str, str | bytes] = {"metadata": "{}", f"offsets/{batch_id}": offset_log()}
    if batch_id:
        files[f"offsets/{batch_id - 1}"] = offset_log(partitions=partitions)
        files[f"commits/{batch_id - 1}"] = commit_log()
    found = {**files, **dict(described)}
    return {path: data.encode() if isinstance(data, str) else data for path, data in found.items()}


def loaded(files: dict[str, bytes], batch_id: int) -> list[str]:
    return [store.folder for store in stores_of_batch(files, batch_id, files.__getitem__)]


def missing(files: dict[str, bytes], batch_id: int, *state: str) -> list[str]:
    stores = stores_of_batch(files, batch_id, files.__getitem__)
    return missing_files([*files, *state], batch_id, stores, is_stateful=False)


# Which stores


def test_every_partition_of_an_operator() -> None:
    files = workdir(3, (METADATA, operator_metadata("default")), ("state/0/0/_metadata/schema", KEYED))
    assert loaded(files, 3) == ["state/0/0", "state/0/1"]


def test_the_first_batch_loads_nothing() -> None:
    assert loaded(workdir(0, (METADATA, operator_metadata("default"))), 0) == []


def test_a_join_has_four_stores_in_each_partition() -> None:
    files = workdir(1, (METADATA, operator_metadata(*SIDES, name="symmetricHashJoin")))
    assert loaded(files, 1) == [f"state/0/{partition}/{side}" for side in SIDES for partition in range(2)]


def test_operators_one_above_the_other() -> None:
    files = workdir(1, *((f"state/{number}/_metadata/metadata", operator_metadata("default")) for number in (0, 1)))
    assert loaded(files, 1) == ["state/0/0", "state/0/1", "state/1/0", "state/1/1"]


@pytest.mark.parametrize(
    ("name", "schema"), [("stateStoreSave", KEYLESS), ("globalLimit", KEYED)], ids=["aggregate over all rows", "limit"]
)
def test_rows_that_are_all_in_one_partition(name: str, schema: bytes) -> None:
    """Spark writes the number of partitions that it has otherwise, and no state in any but the first."""
    metadata = operator_metadata("default", partitions=200, name=name)
    files = workdir(1, (METADATA, metadata), ("state/0/0/_metadata/schema", schema), partitions=200)
    assert loaded(files, 1) == ["state/0/0"]


@pytest.mark.parametrize("partitions", [1, 4])
def test_state_that_was_repartitioned(partitions: int) -> None:
    """Version 1 of the metadata still has the number from before; folders of old partitions are left over."""
    files = workdir(5, (METADATA, operator_metadata("default", partitions=2)), partitions=partitions)
    assert loaded(files, 5) == [f"state/0/{number}" for number in range(partitions)]


def test_version_2_counts_from_its_batch_on() -> None:
    both = [
        (f"state/0/_metadata/v2/{batch}", operator_metadata(*stores, version="v2"))
        for batch, stores in ((0, ["default"]), (4, ["default", "timers"]))
    ]
    assert len(loaded(workdir(4, *both), 4)) == 2
    assert len(loaded(workdir(5, *both), 5)) == 4
    assert loaded(workdir(4, both[1]), 4) == []  # an operator that comes with this batch


def test_without_metadata_nothing_is_known() -> None:
    assert loaded(workdir(3, ("state/0/0/_metadata/schema", KEYED)), 3) == []


# What is missing


def test_every_store_has_to_be_there_in_its_version() -> None:
    files = workdir(3, (METADATA, operator_metadata("default")))
    assert missing(files, 3, "state/0/0/3.delta", "state/0/1/3.snapshot") == []
    assert missing(files, 3, "state/0/0/3.delta", "state/0/1/2.delta") == ["state/0/1, version 3"]
    assert missing(files, 3, "state/0/0/3.delta", "state/0/1/3.delta.crc") == ["state/0/1, version 3"]
    assert missing(files, 3, "state/0/7/2.delta") == ["state/0/0, version 3", "state/0/1, version 3"]


def test_of_several_attempts_the_one_that_counts() -> None:
    files = workdir(3, (METADATA, operator_metadata("default")))
    files["commits/2"] = IDS.encode()
    both = ["state/0/0/3_3f-a.zip", "state/0/1/3_5c-b.changelog"]
    assert missing(files, 3, *both, "state/0/1/3_00-c.changelog") == []
    assert missing(files, 3, both[0], "state/0/1/3_00-c.changelog") == ["state/0/1, version 3"]


def test_logs_come_first() -> None:
    files = workdir(3)
    assert missing({path: files[path] for path in files if path != "offsets/2"}, 3) == ["offsets/2"]
    assert missing({path: files[path] for path in files if path != "commits/2"}, 3) == ["commits/2"]
    assert missing({}, 0) == ["metadata", "offsets/0"]


def test_a_query_with_state_has_stores_from_its_second_batch_on() -> None:
    def undescribed(batch_id: int, *described: tuple[str, str | bytes]) -> list[str]:
        files = workdir(batch_id, *described)
        stores = stores_of_batch(files, batch_id, files.__getitem__)
        return missing_files([*files, f"state/0/0/{batch_id}.delta"], batch_id, stores, is_stateful=True)

    assert undescribed(0) == []
    assert undescribed(1) == undescribed(9) == [UNDESCRIBED]
    assert undescribed(4, ("state/0/_metadata/v2/4", operator_metadata("default", version="v2"))) == [UNDESCRIBED]
    one = [(METADATA, operator_metadata("default")), ("state/0/0/_metadata/schema", KEYLESS)]
    assert undescribed(4, *one) == []


# The version of each partition


def test_a_partition_is_as_far_as_the_last_of_its_stores() -> None:
    files = workdir(
        3,
        (METADATA, operator_metadata("default", partitions=3)),
        ("state/1/_metadata/metadata", operator_metadata("left", partitions=3)),
        partitions=3,
    )
    stores = stores_of_batch(files, 3, files.__getitem__)
    state = ["state/0/0/3.delta", "state/0/1/3.delta", "state/0/2/3.zip", "state/1/0/left/3.delta"]
    assert partition_versions([*state, "state/1/1/left/2.delta"], stores) == [3, 2, 0]
    assert partition_versions(state, []) == []


# Metadata that cannot be read


def test_a_spark_to_come() -> None:
    with pytest.raises(Invalid, match="v3") as found:
        parse_operator_metadata(operator_metadata("default", version="v3"), METADATA)
    assert (found.value.code, found.value.about) == ("workdir.log-format", METADATA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "v1\n{",
        "v1\n[]",
        "v1\n{}",
        "{}",
        'v1\n{"operatorInfo":[],"stateStoreInfo":[]}',
        operator_metadata(),
        operator_metadata("a/b"),
        operator_metadata("default").replace("2", '"2"'),
        operator_metadata("default")[:-1],
    ],
)
def test_torn_metadata(text: str) -> None:
    with pytest.raises(Corrupt) as found:
        parse_operator_metadata(text, METADATA)
    assert (found.value.code, found.value.about) == ("workdir.state-file", METADATA)
