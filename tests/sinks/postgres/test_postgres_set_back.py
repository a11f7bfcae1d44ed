"""A server that does not have what was committed to it, or has it from somebody else. No Spark."""

from __future__ import annotations

from typing import Any

import pytest
from postgres_hands import SIMPLE, ask, at, opened, stage, staging_tables

from holdfast.errors import Corrupt, Invalid
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import SinkProgress
from servers.postgres import PostgresServer

pytestmark = pytest.mark.usefixtures("by_hand")


def deliver(sink: PostgresSink, *epochs: int, **options: Any) -> None:
    """One row for each epoch, with its number as the id."""
    for epoch in epochs:
        to = at(epoch, **options)
        sink.commit(stage(sink, [(epoch, "x")], to), to)


def ids(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT id FROM out ORDER BY id")


def epochs(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT epoch FROM holdfast_commits ORDER BY epoch")


# The table is dropped


def test_a_dropped_table_is_not_made_anew(dsn: str) -> None:
    deliver(opened(dsn), 1, 2, 3)
    ask(dsn, "DROP TABLE out")
    with pytest.raises(Corrupt) as stopped:
        opened(dsn)
    assert stopped.value.code == "sink.set-back"
    assert "epoch 3" in str(stopped.value)
    assert '"public"."holdfast_commits"' in (stopped.value.next_step or "")
    assert ask(dsn, "SELECT to_regclass('out')") == [None]


def test_going_on_without_what_a_dropped_table_had(dsn: str) -> None:
    """As the error says: the sink then tells that it has nothing, and the pipeline asks for on_change='accept'."""
    sink = opened(dsn)
    deliver(sink, 1, 2, 3)
    ask(dsn, "DROP TABLE out; DELETE FROM holdfast_commits WHERE pipeline = 'orders' AND sink = 'out'")
    sink.prepare(SIMPLE, at(0))
    assert sink.recover(at(3, generation=2), None) == SinkProgress()
    deliver(sink, 4, generation=2)
    assert ids(dsn) == [4]


def test_a_dropped_table_is_made_for_those_who_lost_nothing(dsn: str) -> None:
    """Another pipeline, and a new lineage of the same one."""
    deliver(opened(dsn), 1)
    for to in (at(0, pipeline="returns"), at(0, lineage=1)):
        ask(dsn, "DROP TABLE out")
        PostgresSink(dsn, "out").prepare(SIMPLE, to)
        assert ids(dsn) == []


def test_a_table_that_goes_while_the_driver_runs(dsn: str) -> None:
    sink = opened(dsn)
    deliver(sink, 1)
    ask(dsn, "DROP TABLE out")
    with pytest.raises(Invalid, match="only if nothing was committed"):
        deliver(sink, 2)


# The server fails over to one that lacks the newest epoch


def lose(dsn: str, epoch: int) -> None:
    ask(dsn, f"DELETE FROM out WHERE id = {epoch}; DELETE FROM holdfast_commits WHERE epoch = {epoch}")


def test_an_epoch_that_is_lost_between_two_commits(dsn: str) -> None:
    sink = opened(dsn)
    deliver(sink, 1, 2, 3)
    lose(dsn, 3)
    descriptor = stage(sink, [(4, "x")], at(4))
    for _ in range(2):
        with pytest.raises(Corrupt) as stopped:
            sink.commit(descriptor, at(4))
        assert stopped.value.code == "sink.set-back"
        assert "epoch 3" in str(stopped.value)
        assert (ids(dsn), epochs(dsn)) == ([1, 2], [1, 2])
        assert staging_tables(dsn) == [descriptor["staged"]]
    assert sink.recover(at(4, generation=2), descriptor) == SinkProgress(committed=2, lineage=0)
    sink.commit(descriptor, at(4, generation=2))  # whoever asked what is there, and goes on, may
    assert ids(dsn) == [1, 2, 4]


def test_an_epoch_that_is_lost_after_the_start(dsn: str) -> None:
    deliver(opened(dsn), 1, 2)
    sink = PostgresSink(dsn, "out")
    assert sink.recover(at(2, generation=2), None).committed == 2
    lose(dsn, 2)
    with pytest.raises(Corrupt, match="epoch 2"):
        deliver(sink, 3, generation=2)
    assert ids(dsn) == [1]


def test_lineages_and_pipelines_are_remembered_apart(dsn: str) -> None:
    sink = opened(dsn)
    deliver(sink, 1, 2)
    deliver(sink, 7, lineage=1)
    deliver(sink, 8, pipeline="returns")
    deliver(sink, 3)
    assert ids(dsn) == [1, 2, 3, 7, 8]


def test_the_newest_epoch_is_remembered_when_an_earlier_one_is_repeated(dsn: str) -> None:
    sink = opened(dsn)
    first = stage(sink, [(1, "x")], at(1))
    sink.commit(first, at(1))
    deliver(sink, 2)
    sink.commit(first, at(1))
    lose(dsn, 2)
    with pytest.raises(Corrupt, match="epoch 2"):
        deliver(sink, 3)


# Two pipelines of one name, each with a store of its own


def test_other_data_under_the_same_number(dsn: str) -> None:
    europe, america = opened(dsn), opened(dsn)
    mine, theirs = at(1, position="eu:10"), at(1, position="us:7")
    first, second = stage(europe, [(1, "eu")], mine), stage(america, [(2, "us")], theirs)
    europe.commit(first, at(1))
    with pytest.raises(Corrupt, match="another pipeline of the same name"):
        stage(america, [(2, "us")], theirs)
    for _ in range(2):
        with pytest.raises(Corrupt) as stopped:
            america.commit(second, at(1))
        assert stopped.value.code == "sink.other-delivery"
        assert '"public"."out"' in str(stopped.value)
        assert ids(dsn) == [1]
        assert staging_tables(dsn) == [second["staged"]]
    europe.commit(first, at(1))
    assert ask(dsn, "SELECT mark FROM holdfast_commits") == [mine.mark]


def test_the_same_data_staged_by_the_next_driver(dsn: str) -> None:
    sink = opened(dsn)
    first = stage(sink, [(1, "x")], at(1, position="10"))
    second = stage(sink, [(1, "x")], at(1, generation=2, position="10"))
    sink.commit(first, at(1))
    sink.commit(second, at(1, generation=2))
    assert ids(dsn) == [1]
    assert staging_tables(dsn) == []


# What an earlier release left

EARLIER = """
CREATE TABLE holdfast_commits (
    pipeline text NOT NULL, sink text NOT NULL, lineage bigint NOT NULL, epoch bigint NOT NULL,
    generation bigint NOT NULL, target text NOT NULL, row_count bigint NOT NULL,
    committed_at timestamp with time zone NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink, lineage, epoch));
CREATE TABLE out (id bigint, name text);
INSERT INTO out VALUES (1, 'x');
INSERT INTO holdfast_commits VALUES ('orders', 'out', 0, 1, 1, '"public"."out"', 1)"""


def test_commit_rows_and_descriptors_of_an_earlier_release(dsn: str) -> None:
    ask(dsn, EARLIER)
    sink = opened(dsn)
    sink.commit(stage(sink, [(1, "x")], at(1, position="10")), at(1))  # without a mark there is nothing to compare
    earlier = stage(sink, [(2, "x")], at(2, position="20"))
    del earlier["mark"]
    for _ in range(2):
        sink.commit(earlier, at(2))
    deliver(opened(dsn), 3, position="30")
    assert ids(dsn) == [1, 2, 3]
    assert ask(dsn, "SELECT mark FROM holdfast_commits ORDER BY epoch") == [None, None, at(3, position="30").mark]


def test_commit_rows_of_an_earlier_release_and_another_role(dsn: str, pg_server: PostgresServer) -> None:
    ask(dsn, EARLIER)
    database = ask(dsn, "SELECT current_database()")[0]
    role = f"writer_{database}"
    ask(
        dsn,
        f"CREATE ROLE {role} LOGIN PASSWORD 'writers-secret'; GRANT CREATE ON SCHEMA public TO {role}; "
        f"GRANT SELECT, INSERT ON out TO {role}; GRANT SELECT, INSERT, DELETE ON holdfast_commits TO {role}",
    )
    theirs = pg_server.dsn(database, user=role, password="writers-secret")
    with pytest.raises(Invalid) as refused:
        opened(theirs)
    assert refused.value.code == "sink.denied"
    statement = (refused.value.next_step or "").removeprefix("run ").removesuffix(" as its owner")
    ask(dsn, statement)
    deliver(opened(theirs), 2)
    assert ids(dsn) == [1, 2]
