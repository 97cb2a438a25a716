"""TLS in front of a server that cannot speak it, with certificates of a made-up authority."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
import trustme

from trio_orchestrator.testing.program import find_redis_server
from trio_orchestrator.testing.resp import Address
from trio_orchestrator.testing.server import free_ports, open_redis_server

HOST = "127.0.0.1"


@dataclass(frozen=True)
class TlsForwarder:
    """Where the forwarder listens, and the files that a client needs."""

    host: str
    port: int
    ca_path: str
    """The authority to trust, as PEM."""
    certificate_path: str
    """A client's certificate and its chain, as PEM, of an authority that the forwarder trusts."""
    key_path: str
    """The key of that certificate."""

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def url(self) -> str:
        return f"rediss://{self.host}:{self.port}"


@asynccontextmanager
async def open_tls_forwarder(
    target: Address, *, identity: str = HOST, client_certificate: bool = False
) -> AsyncIterator[TlsForwarder]:
    """Forward TLS connections to `target` in plain for the length of the block.

    `identity` is the name or address in the forwarder's certificate: another one than 127.0.0.1 is a wrong one. With
    `client_certificate` a client must show one.
    """
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(identity).configure_cert(context)
    if client_certificate:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        ca, certificate, key = _write(authority, Path(name))
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                partial(trio.serve_ssl_over_tcp, partial(_forward, target), 0, context, host=HOST)
            )
            port = listener.transport_listener.socket.getsockname()[1]
            yield TlsForwarder(HOST, port, ca, certificate, key)
            nursery.cancel_scope.cancel()


def speaks_tls() -> bool:
    """Tell whether the server's program was built with TLS: what lacks it complains of that, not of the certificate."""
    words = [find_redis_server(), "--port", "0", "--tls-port", "1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=10)
    return "tls-cert-file" in done.stdout


@asynccontextmanager
async def open_tls_server(*, identity: str = HOST, client_certificate: bool = False) -> AsyncIterator[TlsForwarder]:
    """Start a server that speaks TLS itself; else the same as `open_tls_forwarder`."""
    authority = trustme.CA()
    own = authority.issue_cert(identity)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        ca, certificate, key = _write(authority, Path(name))
        own.private_key_and_cert_chain_pem.write_to_path(f"{name}/server.pem")
        async with open_redis_server(
            tls_port=port,
            tls_cert_file=f'"{name}/server.pem"',
            tls_key_file=f'"{name}/server.pem"',
            tls_ca_cert_file=f'"{ca}"',
            tls_auth_clients="yes" if client_certificate else "no",
        ):
            yield TlsForwarder(HOST, port, ca, certificate, key)


def _write(authority: trustme.CA, directory: Path) -> tuple[str, str, str]:
    ca, certificate, key = (str(directory / name) for name in ("ca.pem", "client.pem", "client.key"))
    client = authority.issue_cert("client@example.org")
    authority.cert_pem.write_to_path(ca)
    for blob in client.cert_chain_pems:
        blob.write_to_path(certificate, append=True)
    client.private_key_pem.write_to_path(key)
    return ca, certificate, key


async def _forward(target: Address, client: trio.SSLStream[trio.SocketStream]) -> None:
    try:
        async with await _dial(target) as server, trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, nursery.cancel_scope)
            nursery.start_soon(_pump, server, client, nursery.cancel_scope)
    except OSError:
        await trio.aclose_forcefully(client)


async def _dial(target: Address) -> trio.SocketStream:
    if isinstance(target, str):
        return await trio.open_unix_socket(target)
    return await trio.open_tcp_stream(*target)


async def _pump(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope) -> None:
    """Pass on until either side ends; TLS knows no half-closed connection, so that is the end of both ways."""
    try:
        async for data in source:
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
