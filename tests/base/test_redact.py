"""What is written down of options: no secrets, and enough to tell two values apart."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.redact import is_secret, redacted

SECRET = [
    "password",
    "kafka.ssl.key.password",
    "kafka.sasl.jaas.config",
    "fs.s3a.secret.key",
    "fs.s3a.access.key",
    "api_key",
    "apiKey",
    "accountKey",
    "fs.azure.account.key.shop.dfs.core.windows.net",
    "token",
    "oauth.token",
    "http.auth",
    "sharedAccessKey",
    "eventhubs.connectionString",
    "passphrase",
]
INNOCENT = ["subscribe", "path", "table", "key", "header", "author", "sep", "kafka.group.id", "primaryKey", "monkey"]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert redacted({name: "hunter2"}) == {name: "***"}


@pytest.mark.parametrize("name", INNOCENT)
def test_other_names(name: str) -> None:
    assert redacted({name: "orders"}) == {name: "orders"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://***@host/db"),
        ("https://hunter2@host/x", "https://***@host/x"),
        ("s3a://ID:hunter2@bucket/path", "s3a://***@bucket/path"),
        ("abfss://container@shop.dfs.core.windows.net/x", "abfss://container@shop.dfs.core.windows.net/x"),
        ("jdbc:sqlserver://host;user=me;password=hunter2;db=x", "jdbc:sqlserver://host;user=me;password=***;db=x"),
        ("https://host/x?sig=hunter2&a=b", "https://host/x?sig=***&a=b"),
        ('{"password": "hunter2", "table": "x"}', '{"password": ***, "table": "x"}'),
        ("Endpoint=sb://h/;SharedAccessKey=hunter2", "Endpoint=sb://h/;SharedAccessKey=***"),
        ("/data/key=5/x", "/data/key=5/x"),
        ("a:9092,b:9092", "a:9092,b:9092"),
        (5, 5),
        (None, None),
        (True, True),
    ],
)
def test_secrets_in_values(value: Any, shown: Any) -> None:
    assert redacted({"option": value}) == {"option": shown}
    assert redacted({"deep": [{"option": value}]}) == {"deep": [{"option": shown}]}


def test_long_texts_can_still_be_told_apart() -> None:
    one, other = redacted("x" * 5000 + "1"), redacted("x" * 5000 + "2")
    assert one != other
    assert len(one) < 400


def test_redacting_again_changes_nothing() -> None:
    value = {"url": "https://me:pw@h/?token=t", "password": "x", "list": ["a", 1]}
    assert redacted(redacted(value)) == redacted(value)
