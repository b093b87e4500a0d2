"""HTTPS, made ready before anything is loaded."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.config import value_of
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.plan_values import Given

_DEPENDENT = ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs")


def tls_context(given: Mapping[str, Given]) -> ssl.SSLContext | None:
    """``None`` for plain HTTP. Raises ``UserError`` naming the flag whose file cannot be used."""

    def of(name: str) -> Any:
        return value_of(given, f"server.{name}")

    certificate, key, authorities = of("ssl_certfile"), of("ssl_keyfile"), of("ssl_ca_certs")
    if certificate is None:
        for name in _DEPENDENT:
            if of(name):
                raise UserError(f"{_flag(name)} needs --ssl-certfile, the certificate to serve HTTPS with")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        files = f"--ssl-certfile {certificate}" + (f" with --ssl-keyfile {key}" if key else "")
        raise UserError(f"{files} cannot be used: {_reason(error)}; both are PEM files and belong together") from error
    context.verify_mode = ssl.VerifyMode(of("ssl_cert_reqs"))
    if authorities is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return context
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise UserError(f"--ssl-ca-certs {authorities} cannot be used: {_reason(error)}; it is a PEM file") from error
    return context


def _refuse_password() -> bytes:
    raise ValueError("the key has a password; store it without one")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
