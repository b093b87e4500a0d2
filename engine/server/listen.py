"""The socket, before anything else."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from engine.config import value_of
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.plan_values import Given

BACKLOG = 2048
OPEN_FILES = 65536
DEAD_PEER_SECONDS = 60  # until a client is asked whether it is still there; four times, 15 s apart


class Address(NamedTuple):
    """Where a client on this machine finds the server. ``curl``: what curl needs beside ``url``."""

    url: str
    curl: str = ""


@contextmanager
def listening(given: Mapping[str, Given]) -> Iterator[tuple[socket.socket, Address]]:
    """The socket that settings ask for, and room for as many connections as the system allows. Raises ``UserError`` as
    ``listen`` and ``listen_at`` do."""
    path, certificate = value_of(given, "server.uds"), value_of(given, "server.ssl_certfile")
    _raise_open_files()
    if path is not None:
        with listen_at(path) as server:
            scheme = "https" if certificate else "http"
            yield server, Address(f"{scheme}://localhost", f"--unix-socket {path}")
        return
    with listen(value_of(given, "server.host"), value_of(given, "server.port")) as server:
        plain = url(server)
        secure = Address(plain.replace("http", "https", 1), f"--cacert {certificate}")
        yield server, secure if certificate else Address(plain)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Listening at once, not only bound: two servers could share a port until one listens.

    Raises ``UserError`` naming the address and what to do when it is in use, forbidden, or not of this machine.
    """
    address = f"{host}:{port}"
    try:
        family, _, _, _, target = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host!r} is not an address of this machine: {error}; try --host 127.0.0.1") from error
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_dead_peers(server)
        server.bind(target)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as error:
        server.close()
        raise UserError(f"cannot listen on {address}: {_explain(error, port)}") from error
    return server


@contextmanager
def listen_at(path: str) -> Iterator[socket.socket]:
    """A listening Unix socket at ``path``, which is removed at the end. One on which nobody listens any more is
    replaced. Raises ``UserError`` naming the path."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            os.unlink(path)
        server.bind(path)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as error:
        server.close()
        in_use = error.errno == errno.EADDRINUSE
        why = "something listens there, or it is no socket; choose another path" if in_use else str(error)
        raise UserError(f"--uds {path}: cannot listen: {why}") from error
    try:
        with server:
            yield server
    finally:
        with suppress(OSError):
            os.unlink(path)


def _is_left_over(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _notice_dead_peers(server: socket.socket) -> None:
    """Connections inherit it."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", DEAD_PEER_SECONDS), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            server.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def url(server: socket.socket) -> str:
    """Where a client on this machine finds it: an address that means all of them becomes the loopback one."""
    host, port = server.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port + 1 if port < 65535 else port - 1
        return f"the address is already in use; stop what listens there, or choose another port, as in --port {other}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "the system does not allow it; choose a port from 1024 on, as in --port 8000"
    return f"{error.strerror}; check --host and --port"
