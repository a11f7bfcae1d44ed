"""The errors of obstore in the words of Holdfast, sorted by what the caller does next."""

from __future__ import annotations

from obstore import exceptions

from holdfast.base.addresses import scheme_of
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable, one_line
from holdfast.storage.objects.refusals import is_denied, refusal_in, said_by_service
from holdfast.storage.objects.retry import lacks_credentials

ABSENT = (exceptions.NotFoundError, FileNotFoundError)
TAKEN = (exceptions.AlreadyExistsError, FileExistsError)
CHANGED = (*ABSENT, exceptions.PreconditionError)
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
_NO_KEYS = "External AWS credential provider: "
NO_KEYS = (
    "set spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or give the machine a role"
)
_CREDENTIALS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to the path of a key, or give the option "
    "google_service_account",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or give it as an option",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give them as options",
}
_KIND = {"s3a": "s3", "abfs": "az", "abfss": "az"}


def translated(error: Exception, address: str, about: str, *, writing: bool, was_answered: bool) -> HoldfastError:
    """The error of obstore, sorted by what the caller does next. `about` is the object, below the store's `address`.

    Once any request `was_answered`, missing credentials are a fault that passes.
    """
    if "NoSuchBucket" in str(error) or (writing and isinstance(error, ABSENT)):
        return NotFound(
            f"The bucket of {address} does not exist, or is not visible with these credentials.",
            code="bucket.not-found",
            about=address,
            next_step="check the address, or create the bucket",
        )
    if isinstance(error, ABSENT):
        return NotFound(f"{about} is not there.", code="object.not-found", about=about)
    if not was_answered and lacks_credentials(error):
        scheme = scheme_of(address)
        return Unavailable(
            f"No credentials were found for {address}, and this machine has no role to ask for them.",
            code="cloud.credentials",
            about=about,
            unchanged="the store",
            next_step=f"set {_CREDENTIALS[_KIND.get(scheme, scheme)]}",
        )
    if _NO_KEYS in str(error):
        why = str(error).partition(_NO_KEYS)[2].partition("\n\nDebug")[0].partition(": ")[2]
        return Unavailable(
            f"No credentials could be got: {one_line(why)}.",
            code="cloud.unavailable" if was_answered else "cloud.credentials",
            about=about,
            unchanged="everything that was acknowledged before" if writing else "the store",
            next_step="try again when they can be got" if was_answered else NO_KEYS,
        )
    message = f"Could not {'write' if writing else 'read'} {about}: {said_by_service(error)}."
    unchanged = "everything that was acknowledged before" if writing else "the store"
    if refusal := refusal_in(str(error)):
        return Unavailable(message, code=refusal.code, about=about, unchanged=unchanged, next_step=refusal.next_step)
    denied = isinstance(error, _REFUSED) or is_denied(str(error))  # a listing says so in its text
    return Unavailable(
        message,
        code="cloud.denied" if denied else "cloud.unavailable",
        about=about,
        unchanged=unchanged,
        next_step="check the credentials and the bucket's policy" if denied else "try again when the store answers",
    )


def unconditional(address: str, what: str) -> Invalid:
    """The error for a service that has just broken the condition of a write."""
    return Invalid(
        f"{address} does not enforce the conditions of writes: {what}. Two drivers could both decide the "
        "same epoch there, and neither would notice.",
        code="cloud.unconditional",
        about=address,
        unchanged="the store",
        next_step="use a service, a version of it or a gateway that enforces If-None-Match and If-Match on PUT",
    )
