"""The socket, before anything else."""

from __future__ import annotations

import errno
import socket

from engine.errors import UserError

BACKLOG = 2048


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
        server.bind(target)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as error:
        server.close()
        raise UserError(f"cannot listen on {address}: {_explain(error, port)}") from error
    return server


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
