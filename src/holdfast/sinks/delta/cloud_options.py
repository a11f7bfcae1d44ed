"""Storage options of `deltalake`, from the options of our own client. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.addresses import S3_SCHEMES, scheme_of

_S3_NAMES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "token": "AWS_SESSION_TOKEN",
    "default_region": "AWS_REGION",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# Whatever the environment says: a log entry is created only if it does not exist.
_ALWAYS = {"AWS_CONDITIONAL_PUT": "etag"}


def delta_options(address: str, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Options with which `deltalake` reaches an address as obstore does with `options`.

    What is not in the options, `deltalake` takes from the environment by itself. Azure and Google Cloud Storage have
    the same names in both.
    """
    if scheme_of(address) not in S3_SCHEMES:
        return dict(options)
    found = dict(_ALWAYS)
    for name, value in options.items():
        bare = name.lower().removeprefix("aws_")
        found[_S3_NAMES.get(bare, f"AWS_{bare.upper()}")] = value
    endpoint = found.get("AWS_ENDPOINT_URL") or next(
        (environment[name] for name in _ENDPOINTS if name in environment), ""
    )
    if endpoint:
        found["AWS_ENDPOINT_URL"] = endpoint
    if endpoint.startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if "AWS_SECRET_ACCESS_KEY" in found and environment.get("AWS_SESSION_TOKEN"):
        found.setdefault("AWS_SESSION_TOKEN", "")  # the environment's token belongs to other keys
    return found
