"""Where requests go: a target as the user types it, and the HTTP client that reaches it.

http(s)://host[:port][/base][?query]    the API under /base/v1, or under /base where that is what answers
host:port                               http://
.../chat/completions, .../completions   the full address of one API
"""

import os
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec

from loadgen.connection import reason
from loadgen.dialects import Api
from loadgen.record import names_a_secret
from loadgen.sending import Client
from loadgen.transport import StampedTransport

_PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
_LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::]")  # noqa: S104 - as servers print it


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
    expected = f"target {_shown(text)!r}: expected http(s)://host[:port][/base], host:port or sim:MODEL@GPU"
    try:
        url = httpx.URL(full)
    except httpx.InvalidURL:
        raise ValueError(expected) from None
    if url.scheme not in ("http", "https") or not url.host or url.port == 0 or (url.port or 80) > 65535:
        raise ValueError(expected)
    with_port = re.match(r"[^/?]*:\d+(?:[/?]|$)", text)
    if "://" not in text and not with_port:  # a word alone is rather a mistake than a host
        raise ValueError(expected)
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
        secrets=tuple(_secrets_of(url)),
    )


def _shown(text: str) -> str:
    """A text that is no URL, without what may be user, password and query."""
    return re.sub(r"^(\w+://)?.*@", r"\1", text.partition("?")[0])


def _secrets_of(url: httpx.URL) -> Iterator[str]:
    values = [value for key, value in url.params.multi_items() if key != "api-version"]
    for value in (url.username, url.password, *values):
        yield from (value, quote(value, safe=""))
    if url.username or url.password:
        yield b64encode(f"{url.username}:{url.password}".encode()).decode()  # as Basic authorization has it


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
    """The key in the environment variable `name`, where it is set and not blank. Raises ValueError."""
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"the key in {name} has characters that no header can carry: is it only the key?")
    return key or None


def secrets_in(access: Access) -> list[str]:
    values = [value for name, value in access.headers if names_a_secret(name)]
    # A header such as "Bearer KEY" is a secret, and so is its KEY alone.
    values += [word for value in values for word in value.split()[1:]]
    return [*values, access.api_key] if access.api_key else values


def open_client(access: Access) -> Client:
    """The client of a run. Raises ValueError where the CA file cannot be used."""
    headers = httpx.Headers(
        {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity", "User-Agent": "loadgen"}
    )
    if access.api_key:
        headers["Authorization"] = f"Bearer {access.api_key}"
    headers.update(list(access.headers))
    context = _tls_context(access)
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # a session cookie would pin all load to one replica
    if access.transport == "stamped":
        # A transport of ours is never a proxy's: httpx reads proxy variables only for its own.
        return Client(transport=StampedTransport(context), headers=headers, cookies=cookies, trust_env=False)
    try:
        return Client(
            headers=headers,
            cookies=cookies,
            verify=context,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            mounts={f"all://{host}": None for host in _LOOPBACK},  # no proxy on the way to this machine
        )
    except ImportError as error:  # a SOCKS proxy in the environment
        raise ValueError(f"--transport httpx: {error}") from None


def _tls_context(access: Access) -> ssl.SSLContext:
    try:
        if access.ca_file is not None:
            context = ssl.create_default_context(cafile=str(access.ca_file))
        else:
            context = httpx.create_ssl_context()
    except OSError as error:
        source = f"--ca-file {access.ca_file}" if access.ca_file else "SSL_CERT_FILE, SSL_CERT_DIR"
        raise ValueError(f"{source}: {reason(error)}") from None
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
