"""Failed requests of `deltalake` to object storage, in words. Pure."""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.storage.objects.refusals import is_denied, refusal_in, said_by_service
from holdfast.storage.objects.retry import lacks_credentials

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_KEYS = re.compile(r"no credentials found in chain|an error occurred while loading credentials .*request forbidden")
"""What AWS's own library says, which `deltalake` asks for keys where no endpoint is given."""

_FOR_NOW = re.compile(r"status code:? (?:5\d\d|408|429)\b")


def service_error(error: Exception, address: str, unchanged: str, *, was_answered: bool = False) -> HoldfastError:
    """What the service of `address` did not do. Who is to act on it decides the kind: see `holdfast.errors`.

    `was_answered`: a request before this one had an answer, so that credentials which are missing now were there.
    """
    text = " ".join(_COLOURS.sub("", str(error)).replace("↳", "").split())
    if "NoSuchBucket" in text:
        return NotFound(
            f"The bucket of {address} does not exist, or is not visible with these credentials.",
            code="bucket.not-found",
            about=address,
            unchanged=unchanged,
            next_step="check the address, or create the bucket",
        )
    lacks_keys = (lacks_credentials(error) or _NO_KEYS.search(text)) and not _FOR_NOW.search(text)
    if lacks_keys and not was_answered:
        return Unavailable(
            f"No credentials were found for {address}, and this machine has no role to ask for them.",
            code="cloud.credentials",
            about=address,
            unchanged=unchanged,
            next_step="set them in Spark's settings or in the environment, or give storage_options=",
        )
    said = f"{said_by_service(text)}."
    if refusal := refusal_in(text):
        return Unavailable(
            f"{address} refused a request: {said}",
            code=refusal.code,
            about=address,
            unchanged=unchanged,
            next_step=refusal.next_step,
        )
    denied = is_denied(text)
    return Unavailable(
        f"{address} {'refused a request' if denied else 'did not answer'}: {said}",
        code="cloud.denied" if denied else "cloud.unavailable",
        about=address,
        unchanged=unchanged,
        next_step="check the credentials and the bucket's policy" if denied else "try again when the service answers",
    )
