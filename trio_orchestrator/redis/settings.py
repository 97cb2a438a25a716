"""A URL and some options, as redis-py understands them, turned into what a link needs."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final
from urllib.parse import urlsplit

import redis.asyncio
import redis.exceptions
from redis.credentials import CredentialProvider

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.handshake import Credentials

SCHEMES: Final = ("redis", "rediss", "unix")
_TLS: Final = frozenset(
    {"ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname"}
)
_OPTIONS: Final = _TLS | {
    "host", "port", "path", "db", "username", "password", "client_name", "decode_responses", "encoding", "encoding_errors",
    "legacy_responses", "protocol", "credential_provider",
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Target:
    """Whom to talk with, as whom, and how answers are to look."""

    address: Address
    tls: ssl.SSLContext | None
    credentials: Credentials
    database: int
    name: str
    decode: bool
    encoding: str
    encoding_errors: str
    callbacks: Mapping[str, Callable[..., Any]]
    """redis-py's own: from a reply as it comes over RESP3 to what its methods return."""
    encoder: Any
    """redis-py's own."""

    @property
    def reader_encoding(self) -> str | None:
        """What replies are decoded with; None: not at all."""
        return self.encoding if self.decode else None


def default_url(environment: Mapping[str, str] = os.environ) -> str:
    """Return `REDIS_URL`, or the URL made of `REDIS_HOST`, `REDIS_PORT`, `REDIS_DB` (and localhost, 6379, 0)."""
    host, port = environment.get("REDIS_HOST", "localhost"), environment.get("REDIS_PORT", "6379")
    return environment.get("REDIS_URL") or f"redis://{host}:{port}/{environment.get('REDIS_DB', '0')}"


def read_target(url: str | None, **options: Any) -> Target:
    """Read a URL; what is given by name counts more than what stands in it.

    Without a URL that is the environment's: `REDIS_URL`, or `REDIS_HOST`, `REDIS_PORT`, `REDIS_DB`, `REDIS_USERNAME` and
    `REDIS_PASSWORD`.

    Raises:
        ValueError: The URL is malformed, or has an option that is unknown.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if url is None:
        url = default_url()
        if not os.environ.get("REDIS_URL"):
            options = _from_environment() | options
    return _target(_kwargs(url, options), options)


def _from_environment() -> dict[str, Any]:
    names = {"username": "REDIS_USERNAME", "password": "REDIS_PASSWORD"}
    return {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}


def _kwargs(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what redis-py makes of a URL."""
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ValueError(f"url must begin with redis://, rediss:// or unix://, got {url!r}")
    try:
        kwargs = dict(redis.connection.parse_url(url))
    except ValueError as error:
        raise ValueError(f"url must be well-formed, got {url!r}: {error}") from error
    kwargs.pop("connection_class", None)
    unknown = sorted(set(kwargs) - _OPTIONS)
    if unknown:
        raise ValueError(f"url must have options that are known, got {', '.join(unknown)}")
    return {"tls": scheme == "rediss"} | kwargs | dict(options)


def _target(kwargs: dict[str, Any], options: Mapping[str, Any]) -> Target:
    tls = options.get("tls_context")
    if tls is None and kwargs["tls"]:
        tls = _context(kwargs)
    template = _template(kwargs)
    encoder = template.get_encoder()
    return Target(
        address=_address(kwargs),
        tls=tls,
        credentials=_credentials(kwargs),
        database=_whole("db", kwargs.get("db", 0)),
        name=str(kwargs.get("client_name") or ""),
        decode=encoder.decode_responses,
        encoding=encoder.encoding,
        encoding_errors=encoder.encoding_errors,
        callbacks=cast("Mapping[str, Callable[..., Any]]", template.response_callbacks),
        encoder=encoder,
    )


def _template(kwargs: Mapping[str, Any]) -> redis.asyncio.Redis:
    """Return a client of redis-py that is never connected: it knows how answers are to look."""
    names = ("decode_responses", "encoding", "encoding_errors", "legacy_responses", "protocol")
    chosen = {name: kwargs[name] for name in names if name in kwargs}
    if str(chosen.get("protocol", 3)) != "3":
        raise ValueError(f"protocol must be 3, got {chosen['protocol']!r}")
    for name in ("decode_responses", "legacy_responses"):
        if isinstance(chosen.get(name), str):
            chosen[name] = chosen[name].lower() in ("1", "true", "yes", "on")
    return redis.asyncio.Redis(**chosen)


def _address(kwargs: Mapping[str, Any]) -> Address:
    if "path" in kwargs:
        return Address(path=str(kwargs["path"]))
    return Address(str(kwargs.get("host", "localhost")), _whole("port", kwargs.get("port", 6379)))


def _whole(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
    return number


def _credentials(kwargs: Mapping[str, Any]) -> Credentials:
    provider = cast("CredentialProvider | None", kwargs.get("credential_provider"))
    fixed = tuple(str(part) for part in (kwargs.get("username"), kwargs.get("password")) if part)

    async def ask() -> tuple[str, ...]:
        if provider is None:
            return fixed
        return tuple(part for part in await provider.get_credentials_async() if part)

    if provider is None and kwargs.get("username") and not kwargs.get("password"):
        raise ValueError("password must be given with a username")
    return ask


def _context(kwargs: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context that the options of a `rediss://` URL describe, named as in redis-py."""
    context = ssl.create_default_context(
        cafile=kwargs.get("ssl_ca_certs"), capath=kwargs.get("ssl_ca_path"), cadata=kwargs.get("ssl_ca_data")
    )
    if str(kwargs.get("ssl_check_hostname", True)).lower() in ("0", "false", "no"):
        context.check_hostname = False
    required = kwargs.get("ssl_cert_reqs", "required")
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    if required not in modes:
        raise ValueError(f"ssl_cert_reqs must be none, optional or required, got {required!r}")
    if required == "none":
        context.check_hostname = False
    context.verify_mode = modes[required]
    if kwargs.get("ssl_certfile"):
        context.load_cert_chain(kwargs["ssl_certfile"], kwargs.get("ssl_keyfile"), kwargs.get("ssl_password"))
    return context
