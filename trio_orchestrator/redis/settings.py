"""A URL and some options, as redis-py understands them, turned into what a link needs. No error tells a password."""

from __future__ import annotations

import codecs
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis.asyncio
import redis.asyncio.connection
import trio
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.handshake import Credentials

SCHEMES: Final = ("redis", "rediss", "unix")
_TLS: Final = {
    "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs",
    "ssl_check_hostname",
}  # fmt: skip
_SHAPES: Final = ("decode_responses", "encoding", "encoding_errors", "legacy_responses", "protocol")
_IN_URL: Final = _TLS | {*_SHAPES, "db", "username", "password", "client_name"}
_FLAGS: Final = {
    **dict.fromkeys(("1", "t", "true", "y", "yes", "on"), True),
    **dict.fromkeys(("0", "f", "false", "n", "no", "off"), False),
}
_QUOTE: Final = "what is special in a user name or password is to be quoted: urllib.parse.quote(password, safe='')"


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
    shapes: Mapping[str, Any]
    """What redis-py's clients are told about how answers are to look: `decode_responses` and its like."""
    callbacks: Mapping[str, Callable[..., Any]]
    """redis-py's own: from a reply as it comes over RESP3 to what its methods return."""
    encoder: Any
    """redis-py's own."""

    @property
    def reader_encoding(self) -> str | None:
        """What replies are decoded with; None: not at all."""
        return self.encoding if self.decode else None


def read_target(url: str | None, **options: Any) -> Target:
    """Read a URL; what is given by name counts more than what stands in it.

    Without a URL that is the environment's: `REDIS_URL`, or `REDIS_HOST`, `REDIS_PORT`, `REDIS_DB`, `REDIS_USERNAME`
    and `REDIS_PASSWORD`, of which an empty one counts as none.

    Raises:
        TypeError: An option is of the wrong type.
        ValueError: The URL is malformed, or has an option that is unknown; an option is out of range.
    """
    named = {name: value for name, value in options.items() if value is not None}
    found = _from_environment(os.environ) if url is None else _from_url("url", url)
    return _target(found | named, named)


# ------------------------------------------------------------------------------------------- where they stand


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    if environment.get("REDIS_URL"):
        return _from_url("REDIS_URL", environment["REDIS_URL"])
    names = {name: f"REDIS_{name.upper()}" for name in ("host", "port", "db", "username", "password")}
    found: dict[str, Any] = {name: environment[key] for name, key in names.items() if environment.get(key)}
    for name, most in (("port", 65535), ("db", None)):
        if name in found:
            found[name] = _whole(names[name], found[name], most)
    return found


def _from_url(where: str, url: object) -> dict[str, Any]:
    """Return what redis-py makes of a URL, and whether it wants TLS; refuse what redis-py would leave out silently."""
    if not isinstance(url, str):
        raise TypeError(f"{where} must be a str, got {type(url).__name__}")
    parts = _split(where, url)
    _check_options(where, parts)
    try:
        kwargs: dict[str, Any] = {**redis.asyncio.connection.parse_url(url)}
    except ValueError as error:  # its texts name the option, and quote nothing
        raise ValueError(f"{where} must be well-formed: {error}") from None
    kwargs.pop("connection_class", None)
    return kwargs | {"tls": parts.scheme == "rediss"}


def _split(where: str, url: str) -> SplitResult:
    """Return the parts of a URL that has only such as it may have."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise ValueError(f"{where} must begin with redis://, rediss:// or unix://")
    try:
        parts = urlsplit(url)
        if parts.port == 0 or "#" in url:
            raise ValueError
    except ValueError:  # its text may quote what stands before an unquoted / in a password
        raise ValueError(f"{where} must have a host and a port that are well-formed, and no #; {_QUOTE}") from None
    if parts.scheme == "unix":
        if parts.hostname or parts.path in ("", "/"):
            raise ValueError(f"{where} must have the path of a socket after unix://, as unix:///path; {_QUOTE}")
    elif not re.fullmatch(r"/?[0-9]*/?", unquote(parts.path)):
        raise ValueError(f"{where} must have nothing but the number of a database as its path; {_QUOTE}")
    return parts


def _check_options(where: str, parts: SplitResult) -> None:
    names = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if unknown := sorted(names - _IN_URL):
        got = "" if "@" in parts.query else f", got {', '.join(unknown)}"  # it may be a password with an unquoted ?
        raise ValueError(
            f"{where} must have no options but redis-py's of TLS, credentials and answers{got};"
            " time-outs, retries and numbers of connections are arguments"
        )
    if parts.scheme != "rediss" and (names := names & _TLS):
        raise ValueError(f"{where} must begin with rediss:// to have {', '.join(sorted(names))}")


# ------------------------------------------------------------------------------------------------ what they say


def _target(kwargs: dict[str, Any], named: Mapping[str, Any]) -> Target:
    tls = kwargs.get("tls_context")
    if tls is None and kwargs.get("tls"):
        tls = _context(kwargs)
    template = _template(kwargs)
    encoder = template.get_encoder()
    return Target(
        address=_address(kwargs),
        tls=tls,
        credentials=_credentials(kwargs, named),
        database=_whole("db", kwargs.get("db", 0)),
        name=_text("client_name", kwargs.get("client_name")),
        decode=encoder.decode_responses,
        encoding=encoder.encoding,
        encoding_errors=encoder.encoding_errors,
        shapes={name: template.get_connection_kwargs()[name] for name in _SHAPES},
        callbacks=template.response_callbacks,
        encoder=encoder,
    )


def _template(kwargs: Mapping[str, Any]) -> Any:
    """Return a client of redis-py that is never connected: it knows how answers are to look."""
    chosen = {name: kwargs[name] for name in _SHAPES if name in kwargs}
    if str(chosen.get("protocol", 3)) != "3":
        raise ValueError(f"protocol must be 3, got {chosen['protocol']!r}")
    for name in ("decode_responses", "legacy_responses"):
        if name in chosen:
            chosen[name] = _flag(name, chosen[name])
    for name, look_up in (("encoding", codecs.lookup), ("encoding_errors", codecs.lookup_error)):
        if name in chosen:
            _check_codec(name, chosen[name], look_up)
    return redis.asyncio.Redis(**chosen)


def _check_codec(name: str, value: object, look_up: Callable[[str], object]) -> None:
    try:
        look_up(_text(name, value))
    except LookupError:
        raise ValueError(f"{name} must be one that Python knows, got {value!r}") from None


def _flag(name: str, value: object) -> bool:
    flag = value if isinstance(value, bool) else _FLAGS.get(str(value).lower())
    if flag is None:
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return flag


def _address(kwargs: Mapping[str, Any]) -> Address:
    if "path" in kwargs:
        return Address(path=str(kwargs["path"]))
    return Address(str(kwargs.get("host", "localhost")), _whole("port", kwargs.get("port", 6379)))


def _whole(name: str, value: object, most: int | None = None) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0 or (most is not None and number > most):
        raise ValueError(f"{name} must be a whole number >= 0{f' and <= {most}' if most else ''}, got {value!r}")
    return number


def _text(name: str, value: object) -> str:
    """Return a str; its error does not quote the value, which may be a password."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value or ""


def _credentials(kwargs: Mapping[str, Any], named: Mapping[str, Any]) -> Credentials:
    username, password = (_text(name, kwargs.get(name)) for name in ("username", "password"))
    provider = named.get("credential_provider")
    if provider is None:
        fixed = (username, password) if username else (password,) if password else ()
        return _always(fixed)
    if "username" in named or "password" in named:
        raise ValueError("credential_provider must not be given together with username or password")
    if not callable(getattr(provider, "get_credentials_async", None)):
        raise TypeError(f"credential_provider must be a CredentialProvider, got {type(provider).__name__}")
    return _asked(cast("CredentialProvider", provider))


def _always(fixed: tuple[str, ...]) -> Credentials:
    async def ask() -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return fixed

    return ask


def _asked(provider: CredentialProvider) -> Credentials:
    """Return what asks a provider; whatever it raises is an attempt to connect that failed."""
    waits = type(provider).get_credentials_async is not CredentialProvider.get_credentials_async

    async def ask() -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        try:
            told = tuple(await provider.get_credentials_async() if waits else provider.get_credentials())
        except Exception as error:
            raise AuthenticationError(f"credential_provider failed with {type(error).__name__}") from error
        return told if len(told) == 2 and told[0] else tuple(filter(None, told[-1:]))

    return ask


def _context(kwargs: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context that the options of a `rediss://` URL describe, named as in redis-py."""
    context = ssl.create_default_context(
        cafile=kwargs.get("ssl_ca_certs"), capath=kwargs.get("ssl_ca_path"), cadata=kwargs.get("ssl_ca_data")
    )
    required = kwargs.get("ssl_cert_reqs", "required")
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    if required not in modes:
        raise ValueError(f"ssl_cert_reqs must be none, optional or required, got {required!r}")
    context.check_hostname = required != "none" and _flag("ssl_check_hostname", kwargs.get("ssl_check_hostname", True))
    context.verify_mode = modes[required]
    if kwargs.get("ssl_certfile"):
        context.load_cert_chain(kwargs["ssl_certfile"], kwargs.get("ssl_keyfile"), kwargs.get("ssl_password"))
    return context
