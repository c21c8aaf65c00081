"""Where requests go: a target as the user types it, and the HTTP client that reaches it.

http(s)://host[:port][/base][?query]    the API under /base/v1, or under /base where that is what answers
host:port                               http://
.../chat/completions, .../completions   the full address of one API
"""

import os
import ssl
from pathlib import Path

import httpx
import msgspec

from loadgen.dialects import Api
from loadgen.record import names_a_secret
from loadgen.transport import StampedTransport

_PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    label: str  # as it may be shown: without user, password and query values
    bases: tuple[httpx.URL, ...]  # where the API may be, the likeliest first
    api: Api | None  # what a full address settles
    secrets: tuple[str, ...]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is reached: all that is not the load."""

    headers: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    ca_file: Path | None = None
    insecure: bool = False
    transport: str = "stamped"


def parse_target(text: str) -> Target:
    """Raises ValueError."""
    full = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(full)
    except httpx.InvalidURL as error:
        raise ValueError(f"target {text!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"target {text!r}: expected http(s)://host[:port][/base], host:port or sim:MODEL@GPU")
    if "://" not in text and url.port is None:
        raise ValueError(f"target {text!r}: expected host:port, a URL, or sim:MODEL@GPU")
    path = url.path.rstrip("/")
    api: Api | None = None
    for name, end in _PATHS.items():
        if api is None and path.endswith(end):
            api = name
            path = path.removesuffix(end)
    versioned = api is not None or path.endswith("/v1")
    paths = (path,) if versioned else (f"{path}/v1", path)
    return Target(
        label=_label(url),
        bases=tuple(url.copy_with(path=base or "/", fragment=None) for base in paths),
        api=api,
        secrets=(url.password, *(value for key, value in url.params.multi_items() if key != "api-version")),
    )


def _label(url: httpx.URL) -> str:
    shown = url.copy_with(username=None, password=None, query=None, fragment=None)
    names = [key if key != "api-version" else f"{key}={value}" for key, value in url.params.multi_items()]
    return str(shown) + ("?" + "&".join(names) if names else "")


def under(base: httpx.URL, path: str) -> httpx.URL:
    """`path` below the base address, its query kept."""
    return base.copy_with(path=base.path.rstrip("/") + path)


def api_url(base: httpx.URL, api: Api) -> httpx.URL:
    return under(base, _PATHS[api])


def root(base: httpx.URL) -> httpx.URL:
    """Where a server keeps what is not OpenAI's: /tokenize, /metrics."""
    return base.copy_with(path=base.path.rstrip("/").removesuffix("/v1") or "/")


def api_key(name: str) -> str | None:
    """The key in the environment variable `name`, where it is set and not blank."""
    return os.environ.get(name, "").strip() or None


def secrets_in(access: Access) -> list[str]:
    values = [value for name, value in access.headers if names_a_secret(name)]
    # A header such as "Bearer KEY" is a secret, and so is its KEY alone.
    values += [word for value in values for word in value.split()[1:]]
    return [*values, access.api_key] if access.api_key else values


def open_client(access: Access) -> httpx.AsyncClient:
    """The client of a run. Raises ValueError where the CA file cannot be used."""
    headers = {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity", "User-Agent": "loadgen"}
    if access.api_key:
        headers["Authorization"] = f"Bearer {access.api_key}"
    headers.update(access.headers)
    context = _tls_context(access)
    if access.transport == "httpx":
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(headers=headers, verify=context, http2=False, limits=unlimited)
    # A transport of ours is never a proxy's: httpx reads proxy variables only for its own.
    return httpx.AsyncClient(headers=headers, transport=StampedTransport(context), trust_env=False)


def _tls_context(access: Access) -> ssl.SSLContext:
    if access.ca_file is None:
        context = httpx.create_ssl_context()
    else:
        try:
            context = ssl.create_default_context(cafile=str(access.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"--ca-file {access.ca_file}: {error.strerror or error}") from None
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
