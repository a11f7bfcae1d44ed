"""Committing on Redis: one MULTI/EXEC, on the condition, by WATCH, that the index is still ours.

Not a script: Garnet runs none unless it is told to, and a script that fails half-way leaves its first half in force.
"""

from __future__ import annotations

import time
from typing import Any

import redis

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError
from holdfast.storage.kv.pending import Pending
from holdfast.storage.kv.redis_client import Server, checked
from holdfast.storage.kv.redis_connection import Broken, Command, Line, text_of
from holdfast.storage.kv.token import (
    KEPT,
    NOTHING_APPLIED,
    Finding,
    judge,
    new_token,
    not_applied,
    refusal,
    unknown,
)

_PAUSE = 0.05
_OPENING_TRIES = 100


class Committer:
    """Takes the index over when it is made, and from then on commits, as long as nobody else takes it."""

    def __init__(self, server: Server, settle_seconds: float) -> None:
        self._server = server
        self._layout = server.layout
        self._settle_seconds = settle_seconds
        self._token = self._take()
        self._doubted: bytes | None = None
        """The token of a commit that was interrupted, as by ^C, before its reply was read."""

    def commit(self, pending: Pending) -> None:
        line = self._ready()
        before, after = self._token, new_token()
        queued = [["MULTI"], *self._layout.commands(pending), ["SET", self._layout.token, after]]
        with step("redis.queue"):
            line.send(queued)
        # Until here a broken connection means that nothing was applied: the server forgets what it has queued.
        self._doubted = after
        try:
            with step("redis.commit"):
                replies = line.ask(["EXEC"], *self._server.sync())
        except Broken as error:
            self._server.drop_line()
            self._settle({before: False, after: True}, str(error))
            return
        self._doubted = None
        if not self._executed(replies[: len(queued) + 1]):
            raise self._refused(line)
        self._token = after
        self._server.check_synced(replies[len(queued) + 1 :])

    def _take(self) -> bytes:
        """Put our token in the place of the one that is there, which is kept in a list."""
        line = self._server.verified_line()
        for _ in range(_OPENING_TRIES):
            found, *types = self._watch(line)
            self._layout.check(types, self._server.address)
            token = new_token()
            queued: list[Command] = [["MULTI"], ["SET", self._layout.token, token]]
            if found is not None:
                queued.append(["LPUSH", self._layout.earlier, found])
                queued.append(["LTRIM", self._layout.earlier, 0, KEPT - 1])
            # If this reply is lost, nothing of value is: whoever opens the index next replaces the token.
            with step("redis.open"):
                replies = line.ask(*queued, ["EXEC"], *self._server.sync())
            if self._executed(replies[: len(queued) + 1]):
                self._server.check_synced(replies[len(queued) + 1 :])
                return token
        raise Conflict(
            "Other processes take the index over again and again.",
            code="index.in-use",
            about=self._server.address,
            unchanged="the index",
            next_step="stop them, then open it again",
        )

    def _ready(self) -> Line:
        """A connection on which the index is watched and known to be ours; a new one if the old one is broken."""
        try:
            line = self._server.verified_line()
            found, *types = self._watch(line)
        except Broken:
            self._server.drop_line()
            line = self._server.verified_line()
            found, *types = self._watch(line)
        if found is not None and found == self._doubted:
            self._token = found
        if found != self._token:
            raise self._refused(line)
        self._doubted = None
        self._layout.check(types, self._server.address)
        return line

    def _watch(self, line: Line) -> list[Any]:
        """The token and the type of every key; EXEC is refused if any of them changes from here on."""
        watch = ["WATCH", *self._layout.all]
        return checked(line.ask(watch, ["GET", self._layout.token], *self._layout.types()))[1:]

    def _executed(self, replies: list[Any]) -> bool:
        """Whether EXEC, the last of these replies, took effect; False if what it watched had changed."""
        results = replies[-1]
        if isinstance(results, redis.ResponseError):
            checked(replies)  # raises the first, which is the cause
        if results is None:
            return False
        failed = [str(result) for result in results if isinstance(result, redis.ResponseError)]
        if failed:
            raise Corrupt(
                f"The server applied part of a transaction and refused the rest: {failed[0]}",
                code="index.half-applied",
                about=self._server.address,
                next_step="reset the index: what it holds belongs to no checkpoint",
            )
        return True

    def _refused(self, line: Line) -> HoldfastError:
        found, earlier = checked(
            line.ask(["UNWATCH"], ["GET", self._layout.token], ["LRANGE", self._layout.earlier, 0, -1])
        )[1:]
        finding = judge(found, earlier, {self._token: False})
        if finding.standing != "ours":
            return refusal(finding, self._server.address)
        return Conflict(
            "Something else than Holdfast wrote to the keys of the index during the commit.",
            code="index.touched",
            about=self._server.address,
            unchanged=NOTHING_APPLIED,
            next_step=f"find out what writes to {self._layout.pattern}; then do the session again",
        )

    def _settle(self, ours: dict[bytes, bool], why: str) -> None:
        """Find out what became of a commit whose reply was lost. Returns if it is in force, and durable."""
        self._doubted = None
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                finding = self._settle_once(ours)
            except Broken as error:
                self._server.drop_line()
                if time.monotonic() > deadline:
                    raise unknown(self._server.address, str(error)) from None
                time.sleep(_PAUSE)
            except redis.RedisError as error:
                raise unknown(self._server.address, text_of(error)) from None
            else:
                if finding is not None:
                    break
        if finding.standing == "set-back":
            raise unknown(self._server.address, "the server's index is an older one, another one, or was opened often.")
        if finding.standing == "gone" or (finding.standing == "fenced" and not finding.applied):
            raise refusal(finding, self._server.address)
        if not finding.applied:
            raise not_applied(self._server.address, why)

    def _settle_once(self, ours: dict[bytes, bool]) -> Finding | None:
        """What the token says, after it was replaced: an EXEC still on its way is then refused, whenever it arrives.

        None if something changed meanwhile. `ours` gains the new token, whose reply may be lost as well.
        """
        line = self._server.line()
        found = self._watch(line)[0]
        (earlier,) = checked(line.ask(["LRANGE", self._layout.earlier, 0, -1]))
        finding = judge(found, earlier, ours)
        if finding.standing != "ours":
            return finding
        fresh = new_token()
        ours[fresh] = bool(finding.applied)
        with step("redis.settle"):
            replies = line.ask(["MULTI"], ["SET", self._layout.token, fresh], ["EXEC"], *self._server.sync())
        if not self._executed(replies[:3]):
            return None
        self._token = fresh
        self._server.check_synced(replies[3:])
        return finding
