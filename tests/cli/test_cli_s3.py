from __future__ import annotations

import pytest
from cli_running import in_child

import holdfast
from checkpoint_stores import fill

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(s3_server):
    return s3_server.new_bucket()


def test_every_verb_on_s3_from_the_environment(s3_server, bucket):
    address = f"s3://{bucket}/orders"
    fill(address, options=s3_server.options)

    def run(*words: object):
        return in_child(*words, **s3_server.environment())

    assert [item["checkpoint_id"] for item in run("ls", address, "--json").data["checkpoints"]] == [3, 2, 1]
    assert "checkpoint  3" in run("show", address).out
    assert "1000 → 2000" in run("diff", address, 1, 2).out
    assert run("verify", address, "--deep").code == 0
    assert run("recover", address).code == 0
    assert run("gc", address, "--yes").code == 0
    assert run("prune", address, "--keep", 1).code == 2
    assert run("prune", address, "--keep", 1, "--yes").code == 0
    assert holdfast.open_store(address, options=s3_server.options).list_ids() == [3]


def test_options_instead_of_the_environment(run, s3_server, bucket, monkeypatch):
    for name in s3_server.environment():
        monkeypatch.delenv(name, raising=False)
    address = f"s3://{bucket}/orders"
    fill(address, options=s3_server.options)
    options = [word for name, value in s3_server.options.items() for word in ("--option", f"{name}={value}")]
    ran = run("ls", address, *options)
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 4


def test_damage_and_a_pointer_on_s3(run, s3_server, bucket):
    address = f"s3://{bucket}"
    fill(address, options=s3_server.options)
    options = [word for name, value in s3_server.options.items() for word in ("--option", f"{name}={value}")]
    store = holdfast.open_store(address, options=s3_server.options)
    store.objects.delete(["checkpoints/state-000003.bin"])
    assert run("verify", address, *options).code == 6
    ran = run("recover", address, "--yes", *options)
    assert ran.code == 0
    assert store.latest_pointer() == 2


def test_nothing_there_and_nobody_there(run, s3_server, bucket):
    options = [word for name, value in s3_server.options.items() for word in ("--option", f"{name}={value}")]
    empty = run("verify", f"s3://{bucket}/nothing", *options)
    assert (empty.code, empty.out) == (0, "")
    gone = run("ls", "s3://no-such-bucket-here/x", *options)
    assert gone.code == 3
    assert "no-such-bucket-here" in gone.err
    deaf = run("ls", f"s3://{bucket}", *options, "--option", "aws_endpoint_url=http://127.0.0.1:9")
    assert deaf.code == 8
