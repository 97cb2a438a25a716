"""What a client is told: URLs, names, the environment, credentials; and what it refuses before anything is sent."""

from __future__ import annotations

import enum
import ssl
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import AuthenticationError, DataError, RedisError

from trio_orchestrator.redis import open_redis, wire
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.settings import Target, read_target
from trio_orchestrator.testing.server import RedisServer

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "HOST", "PORT", "DB", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"REDIS_{name}", raising=False)


async def said(target: Target) -> tuple[Address, tuple[str, ...], int]:
    return target.address, await target.credentials(), target.database


# ------------------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "address", "credentials", "database"),
    [
        ("redis://", Address("localhost", 6379), (), 0),
        ("redis://h", Address("h", 6379), (), 0),
        ("redis://h:1234/7", Address("h", 1234), (), 7),
        ("redis://h:1234/7/", Address("h", 1234), (), 7),
        ("redis://h?db=3", Address("h", 6379), (), 3),
        ("redis://:pw@h", Address("h", 6379), ("pw",), 0),
        ("redis://bob:pw@h", Address("h", 6379), ("bob", "pw"), 0),
        ("redis://bob@h", Address("h", 6379), ("bob", ""), 0),
        ("redis://bob:p%40%2F%3A%23w@h/1", Address("h", 6379), ("bob", "p@/:#w"), 1),
        ("redis://h?username=bob&password=p%25w", Address("h", 6379), ("bob", "p%w"), 0),
        ("redis://[::1]:6380", Address("::1", 6380), (), 0),
        ("rediss://h:6380", Address("h", 6380), (), 0),
        ("unix:///run/redis.sock", Address(path="/run/redis.sock"), (), 0),
        ("unix://bob:pw@/a%20b/s?db=2", Address(path="/a b/s"), ("bob", "pw"), 2),
    ],
)
async def test_a_url_says_where_and_as_whom(
    url: str, address: Address, credentials: tuple[str, ...], database: int
) -> None:
    assert await said(read_target(url)) == (address, credentials, database)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("localhost", "url must begin with redis://, rediss:// or unix://"),
        ("http://h", "url must begin with redis://, rediss:// or unix://"),
        ("redis:h", "url must begin with redis://"),
        ("", "url must begin with redis://"),
        ("redis://h:port", "url must have a host and a port that are well-formed"),
        ("redis://h:70000", "url must have a host and a port that are well-formed"),
        ("redis://h:0", "url must have a host and a port that are well-formed"),
        ("redis://[::1", "url must have a host and a port that are well-formed"),
        ("redis://h#1", "url must have a host and a port that are well-formed, and no #"),
        ("redis://h/name", "url must have nothing but the number of a database as its path"),
        ("redis://h/-1", "url must have nothing but the number of a database as its path"),
        ("redis://h/1/2", "url must have nothing but the number of a database as its path"),
        ("redis://h?db=one", "url must be well-formed: Invalid value for 'db'"),
        ("redis://h?db=-1", "db must be a whole number >= 0, got -1"),
        ("redis://h?protocol=2", "protocol must be 3, got 2"),
        ("redis://h?decode_responses=perhaps", "decode_responses must be true or false, got 'perhaps'"),
        ("redis://h?encoding=nonsense", "encoding must be one that Python knows, got 'nonsense'"),
        ("redis://h?encoding_errors=nonsense", "encoding_errors must be one that Python knows, got 'nonsense'"),
        ("redis://h?socket_timeout=5&x=1", "got socket_timeout, x; time-outs, retries and numbers"),
        ("redis://h?path=/s", "url must have no options but redis-py's .*, got path"),
        ("redis://h?host=other", "url must have no options but redis-py's .*, got host"),
        ("redis://h?credential_provider=x", "url must have no options but redis-py's .*, got credential_provider"),
        ("redis://h?ssl_cert_reqs=none", "url must begin with rediss:// to have ssl_cert_reqs"),
        ("rediss://h?ssl_cert_reqs=some", "ssl_cert_reqs must be none, optional or required, got 'some'"),
        ("rediss://h?ssl_check_hostname=0&ssl_cert_reqs=x", "ssl_cert_reqs must be none, optional or required"),
        ("unix://", "url must have the path of a socket after unix://"),
        ("unix://relative/s", "url must have the path of a socket after unix://"),
    ],
)  # fmt: skip
def test_a_malformed_url_is_refused(url: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        open_redis(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://bob:{SECRET}/x@h", f"redis://bob:{SECRET}?x@h", f"redis://bob:{SECRET}#x@h", f"redis://:12/{SECRET}@h",
        f"redis://:12?{SECRET}@h", f"redis://:12?x&{SECRET}=@h", f"redis://:[{SECRET}@h", f"redis://bob:{SECRET}@h:port",
        f"redis://bob:{SECRET}@h/name", f"redis://bob:{SECRET}@h?nothing=1", f"redis://bob:{SECRET}@h?db=x",
        f"http://bob:{SECRET}@h", f"bob:{SECRET}@h", f"redis://h?password={SECRET}&x=1", f"unix://bob:{SECRET}@h/s",
        f"unix://:{SECRET}/x@/s", f"redis://bob:{SECRET}@h?protocol=2", f"redis://h?ssl_password={SECRET}",
        f"redis://bob:{SECRET}@h?decode_responses=perhaps", f"redis://bob:{SECRET}@h?encoding=x",
    ],
)  # fmt: skip
def test_no_error_tells_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"must") as caught:
        read_target(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_neither_does_what_a_client_says_of_itself(redis_server: RedisServer) -> None:
    url = f"redis://nobody:{SECRET}@127.0.0.1:{redis_server.port}"
    with pytest.raises(AuthenticationError) as caught:
        async with open_redis(url):
            pass
    with pytest.raises(RedisError) as unreachable:
        async with open_redis(f"redis://:{SECRET}@127.0.0.1:1"):
            pass
    said = [repr(read_target(url)), *(str(e) + repr(e.__cause__) for e in (caught.value, unreachable.value))]
    assert [SECRET in text for text in said] == [False] * 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"password": b"pw"}, TypeError, "password must be a str, got bytes"),
        ({"username": 1}, TypeError, "username must be a str, got int"),
        ({"client_name": 1}, TypeError, "client_name must be a str, got int"),
        ({"db": -1}, ValueError, "db must be a whole number >= 0, got -1"),
        ({"db": 1.5}, ValueError, "db must be a whole number >= 0, got 1.5"),
        ({"credential_provider": 1}, TypeError, "credential_provider must be a CredentialProvider, got int"),
        (
            {"credential_provider": CredentialProvider(), "password": "pw"},
            ValueError,
            "credential_provider must not be",
        ),
        ({"url": b"redis://h"}, TypeError, "url must be a str, got bytes"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_redis(**options)


async def test_what_is_given_by_name_counts_more_than_the_url() -> None:
    target = read_target("redis://bob:old@h/1?decode_responses=yes", password="new", db=2, decode_responses=False)
    assert await said(target) == (Address("h", 6379), ("bob", "new"), 2)
    assert target.decode is False
    assert read_target("redis://h?decode_responses=yes").decode is True
    assert read_target("redis://h?decode_responses=False").decode is False


def test_a_rediss_url_describes_its_context() -> None:
    strict, loose = read_target("rediss://h"), read_target("rediss://h?ssl_cert_reqs=none")
    unnamed, given = read_target("rediss://h?ssl_check_hostname=no"), ssl.create_default_context()
    assert read_target("redis://h").tls is None
    assert [(c.check_hostname, c.verify_mode) for c in (strict.tls, loose.tls, unnamed.tls) if c] == [
        (True, ssl.CERT_REQUIRED), (False, ssl.CERT_NONE), (False, ssl.CERT_REQUIRED)
    ]  # fmt: skip
    assert read_target("rediss://h", tls_context=given).tls is given


# --------------------------------------------------------------------------------------- the environment


async def test_without_a_url_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await said(read_target(None)) == (Address("localhost", 6379), (), 0)
    for name, value in {"HOST": "::1", "PORT": "1", "DB": "2", "USERNAME": "bob", "PASSWORD": "p@/#w"}.items():
        monkeypatch.setenv(f"REDIS_{name}", value)
    assert await said(read_target(None)) == (Address("::1", 1), ("bob", "p@/#w"), 2)
    assert await said(read_target(None, db=5, password="q")) == (Address("::1", 1), ("bob", "q"), 5)
    assert await said(read_target("redis://h")) == (Address("h", 6379), (), 0)
    monkeypatch.setenv("REDIS_URL", "redis://:pw@other/3")
    assert await said(read_target(None)) == (Address("other", 6379), ("pw",), 3)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("REDIS_URL", f"http://:{SECRET}@h", "REDIS_URL must begin with redis://"),
        ("REDIS_URL", f"redis://:{SECRET}/@h", "REDIS_URL must have a host and a port"),
        ("REDIS_PORT", "many", "REDIS_PORT must be a whole number >= 0 and <= 65535, got 'many'"),
        ("REDIS_PORT", "65536", "REDIS_PORT must be a whole number >= 0 and <= 65535, got '65536'"),
        ("REDIS_DB", "-1", "REDIS_DB must be a whole number >= 0, got '-1'"),
    ],
)
def test_a_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=error) as caught:
        open_redis()
    assert SECRET not in str(caught.value)


# ---------------------------------------------------------------------------------- with a real server


@contextmanager
def user(server: RedisServer, *rules: str) -> Iterator[None]:
    server.command("ACL", "SETUSER", "bob", "on", "~*", "+@all", *rules)
    yield
    server.command("ACL", "DELUSER", "bob")


class Fresh(CredentialProvider):
    """Asked before each connection; async."""

    asked = 0

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked += 1
        return "bob", SECRET


class Plain(CredentialProvider):
    """Has only the sync method."""

    def get_credentials(self) -> tuple[str, str]:
        return "bob", SECRET


class Broken(CredentialProvider):
    def get_credentials(self) -> tuple[str]:
        raise KeyError(SECRET)


@pytest.mark.parametrize(
    "options",
    [
        {"username": "bob", "password": SECRET},
        {"credential_provider": Fresh()},
        {"credential_provider": Plain()},
        {"credential_provider": UsernamePasswordCredentialProvider("bob", SECRET)},
    ],
    ids=["name", "async", "sync", "fixed"],
)
async def test_a_user_is_who_they_say(redis_server: RedisServer, options: dict[str, Any]) -> None:
    with user(redis_server, f">{SECRET}"):
        for url in (redis_server.url, redis_server.tcp_url):
            async with open_redis(url, **options) as redis:
                assert await redis.acl_whoami() == "bob"
                assert await redis.blpop("settings:none", timeout=0.001) is None  # on a connection of its own
    provider = options.get("credential_provider")
    assert not isinstance(provider, Fresh) or provider.asked == 4


async def test_a_user_without_a_password_needs_none(redis_server: RedisServer) -> None:
    with user(redis_server, "nopass"):
        for options in ({"username": "bob"}, {"credential_provider": UsernamePasswordCredentialProvider("bob", "")}):
            async with open_redis(redis_server.url, **options) as redis:
                assert await redis.acl_whoami() == "bob"
    async with open_redis(redis_server.url, credential_provider=UsernamePasswordCredentialProvider()) as redis:
        assert await redis.acl_whoami() == "default"


async def test_a_user_without_rights_still_connects(redis_server: RedisServer) -> None:
    with user(redis_server, f">{SECRET}", "-@all", "+get"):
        async with open_redis(redis_server.url, username="bob", password=SECRET) as redis:
            assert await redis.get("settings:none") is None
            with pytest.raises(RedisError, match="permission"):
                await redis.set("settings:none", 1)


async def test_the_wrong_password_and_a_broken_provider_end_the_entry(redis_server: RedisServer) -> None:
    with user(redis_server, f">{SECRET}"):
        with pytest.raises(AuthenticationError, match="invalid username-password"):
            async with open_redis(redis_server.url, username="bob", password="wrong"):
                pass
        with pytest.raises(AuthenticationError, match="credential_provider failed with KeyError") as caught:
            async with open_redis(redis_server.url, credential_provider=Broken()):
                pass
        assert SECRET not in str(caught.value)


async def test_the_database_and_the_name_are_those_of_the_url(redis_server: RedisServer) -> None:
    for base in (redis_server.url + "?db=3&", redis_server.tcp_url + "/3?"):
        async with open_redis(base + "client_name=me", decode_responses=True) as redis:
            assert await redis.client_getname() == "me"
            assert (await redis.client_info())["db"] == 3
            await redis.set("settings:db", "3", px=10_000)
            async with open_redis(redis_server.url) as other:
                assert await other.get("settings:db") is None
            assert await redis.getdel("settings:db") == "3"
    with pytest.raises(RedisError, match="out of range"):
        async with open_redis(redis_server.url, db=10_000):
            pass
    with pytest.raises(RedisError, match="cannot contain spaces"):
        async with open_redis(redis_server.url, client_name="two words"):
            pass


# ------------------------------------------------------------------------------------------- arguments


async def test_another_encoding_goes_both_ways(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as raw:
        async with open_redis(redis_server.url, encoding="latin-1", decode_responses=True) as redis:
            await redis.set("settings:ü", "é", px=10_000)
            assert await raw.get("settings:ü".encode("latin-1")) == b"\xe9"
            assert await redis.get("settings:ü") == "é"
            with pytest.raises(DataError, match="must be encodable as latin-1"):
                await redis.set("settings:ü", "€")
            assert await redis.delete("settings:ü") == 1
        escaping = open_redis(redis_server.url, encoding_errors="surrogateescape", decode_responses=True)
        async with escaping as redis:
            await raw.set("settings:raw", b"\xff", px=10_000)
            found: Any = await redis.get("settings:raw")
            await redis.set("settings:raw", found)
            assert (found, await raw.getdel("settings:raw")) == ("\udcff", b"\xff")


async def test_a_reply_that_cannot_be_decoded_is_its_callers_trouble_alone(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url, decode_responses=True) as redis:
        await redis.set("settings:raw", b"\xff", px=10_000)
        for ask in (redis.get, redis.getdel):
            with pytest.raises(UnicodeDecodeError):
                await ask("settings:raw")
            assert await redis.echo("ü") == "ü"
        assert redis.statistics().connections == 1


async def test_what_is_like_bytes_is_taken_as_bytes(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as redis:
        for value in (bytearray(b"a\x00b"), memoryview(b"a\x00b"), memoryview(b"_a_\x00_b_")[1::2]):
            key: Any = bytearray(b"settings:bytes")
            await redis.set(key, value, px=10_000)
            assert await redis.getdel(memoryview(b"settings:bytes")) == b"a\x00b"


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("bad", [None, True, ["a"], {"a": 1}, object(), "\ud800", Colour.RED, 1j], ids=repr)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
async def test_a_bad_argument_is_refused_before_anything_is_sent(
    redis_server: RedisServer, bad: object, encoding: str
) -> None:
    async with open_redis(redis_server.url, encoding=encoding) as redis:
        before = redis.statistics().sent_bytes
        with pytest.raises(DataError):
            await redis.execute_command("SET", "settings:bad", bad)
        with pytest.raises(DataError):
            redis.post("SET", "settings:bad", bad)
        assert redis.statistics().sent_bytes == before


async def test_a_value_that_the_server_would_hang_up_for_is_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LARGEST", 1000)
    async with open_redis(redis_server.url) as redis:
        before = redis.statistics().sent_bytes
        for value in (bytes(1000), "x" * 1000, "ü" * 500, bytearray(1000), memoryview(bytes(1000))):
            with pytest.raises(DataError, match="arguments must be shorter than 512 MB, got one of 1000 bytes"):
                await redis.set("settings:big", value)
        assert redis.statistics().sent_bytes == before
        await redis.mset({"settings:1": bytes(999), "settings:2": bytes(999)})
        assert await redis.delete("settings:1", "settings:2") == 2
