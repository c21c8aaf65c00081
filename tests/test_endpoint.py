"""Targets as users type them, and the client that reaches them."""

import asyncio
import contextlib
import socket
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.endpoint import Access, api_key, api_url, open_client, parse_target, root, secrets_in, under
from loadgen.transport import StampedTransport
from tests.fakes_api import Received, answer, listening, receive
from tests.fakes_client import echo
from tests.fakes_tls import authority_file, certificates, little_trust

__all__ = ["little_trust"]
pytestmark = pytest.mark.usefixtures("little_trust")

TARGETS = {
    "localhost:8000": ("http://localhost:8000/v1", "http://localhost:8000/"),
    "localhost:80": ("http://localhost/v1", "http://localhost/"),
    "10.0.0.1:8000/": ("http://10.0.0.1:8000/v1", "http://10.0.0.1:8000/"),
    "localhost:8000/v1": ("http://localhost:8000/v1",),
    "http://host": ("http://host/v1", "http://host/"),
    "https://host/api": ("https://host/api/v1", "https://host/api"),
    "https://host/api/v1/": ("https://host/api/v1",),
    "http://[::1]:8000/v1": ("http://[::1]:8000/v1",),
    "https://host/v1/chat/completions": ("https://host/v1",),
    "https://host/openai/completions?api-version=3": ("https://host/openai?api-version=3",),
    "https://host/chat/completions/": ("https://host/",),
    "https://host/v1?key=secret#part": ("https://host/v1?key=secret",),
}


@pytest.mark.parametrize("text", TARGETS)
def test_where_the_api_may_be(text: str) -> None:
    assert tuple(map(str, parse_target(text).bases)) == TARGETS[text]


@pytest.mark.parametrize(
    ("text", "api"),
    [
        ("http://h/v1/chat/completions", "chat"),
        ("http://h/v1/completions", "completions"),
        ("http://h/v1", None),
        ("http://h/chat/completions/v1", None),
    ],
)
def test_a_full_address_settles_the_api(text: str, api: str | None) -> None:
    target = parse_target(text)
    assert target.api == api
    if target.api is not None:
        assert str(api_url(target.bases[0], target.api)) == text


BAD = [
    "",
    "host",
    "host/v1",
    "http://",
    "http:///v1",
    "ftp://host",
    "http://host:port",
    "http://host:0",
    "http://host:65536",
]
BAD += [
    "host:",
    ":8000",
    "//host:80",
    "http:/host",
    "http://[::1",
    "http://ho\nst",
    "key@host",
    "host?a=b:80",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_target_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^target '.*': expected http\(s\)://host\[:port\]\[/base\], host:port or sim:"
    ):
        parse_target(text)


@given(st.text(max_size=40))
def test_any_text_is_a_target_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_target(text).bases


@pytest.mark.parametrize(
    "text",
    [
        "https://CANARY@host/v1",
        "https://user:CANARY@host/v1",
        "https://user:CANARY@host/v1?key=CANARY&api-version=1",
        "user:CANARY@host:80",
    ],
)
def test_a_label_shows_no_secret(text: str) -> None:
    target = parse_target(text)
    assert "CANARY" not in target.label
    assert "CANARY" in target.secrets


@pytest.mark.parametrize(
    "text", ["ftp://user:CANARY@host", "http://user:CANARY@host:port", "u:CANARY@h", "u:CANARY/x@h:1"]
)
def test_a_refusal_shows_no_secret(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_target(text)
    assert "CANARY" not in str(caught.value)
    with pytest.raises(ValueError, match="expected") as caught:
        parse_target("ftp://h?key=CANARY")
    assert "CANARY" not in str(caught.value)


def test_a_label_keeps_what_tells_targets_apart() -> None:
    assert parse_target("https://u:p@h:1/b?key=k&api-version=2#x").label == "https://h:1/b?key&api-version=2"


def test_a_secret_is_known_as_it_is_written_in_a_url_too() -> None:
    assert {"a/b c", "a%2Fb%20c"} <= set(parse_target("https://host/?key=a%2Fb%20c").secrets)


def test_paths_below_a_base_keep_its_query() -> None:
    base = httpx.URL("https://host/api/v1?key=k")
    assert str(under(base, "/models")) == "https://host/api/v1/models?key=k"
    assert str(root(base)) == "https://host/api?key=k"
    assert str(under(root(httpx.URL("http://host/v1")), "/tokenize")) == "http://host/tokenize"


# Keys and headers


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "  sk-1 \n")
    assert api_key("SOME_KEY") == "sk-1"
    monkeypatch.setenv("SOME_KEY", " ")
    assert api_key("SOME_KEY") is None
    monkeypatch.delenv("SOME_KEY")
    assert api_key("SOME_KEY") is None


@pytest.mark.parametrize("key", ["CANARY\nX: y", "CANARY\u201d", "CANARY\x01"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(ValueError, match="the key in SOME_KEY") as caught:
        api_key("SOME_KEY")
    assert "CANARY" not in str(caught.value)


def test_secrets_are_the_key_and_the_secret_headers() -> None:
    access = Access(headers=(("Authorization", "Bearer abc"), ("X-Team", "blue"), ("X-Api-Key", "def")), api_key="ghi")
    assert set(secrets_in(access)) == {"Bearer abc", "abc", "def", "ghi"}


async def asked_with(access: Access) -> Received:
    seen: list[Received] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await receive(reader))
        writer.write(answer("{}", "200 OK", "application/json", "Set-Cookie: session=1"))

    async with listening(note) as server, open_client(access) as http:
        for _ in range(2):
            assert (await http.get(server.url())).status_code == 200
    return seen[-1]


@pytest.mark.parametrize("transport", ["stamped", "httpx"])
async def test_what_every_request_carries(transport: str) -> None:
    headers = (("X-Team", "blue"), ("accept", "text/plain"))
    seen = await asked_with(Access(headers=headers, api_key="k", transport=transport))
    assert seen.headers["authorization"] == "Bearer k"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["x-team"] == "blue"
    assert seen.headers["accept"] == "text/plain"
    assert "cookie" not in seen.headers  # not even after the server has set one


async def test_a_header_of_the_user_goes_before_the_key() -> None:
    seen = await asked_with(Access(headers=(("authorization", "Token t"),), api_key="k"))
    assert seen.headers["authorization"] == "Token t"


async def test_without_a_key_there_is_no_authorization() -> None:
    assert "authorization" not in (await asked_with(Access())).headers


@pytest.mark.parametrize("transport", ["stamped", "httpx"])
async def test_no_proxy_on_the_way_to_this_machine(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await asked_with(Access(transport=transport))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "api.localhost", "[::1]", "0.0.0.0", "[::]"])
async def test_no_proxy_whatever_this_machine_is_called(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with open_client(Access(transport="httpx")) as http:
        assert http._transport_for_url(httpx.URL(f"http://{host}:8000/v1")) is http._transport
        assert http._transport_for_url(httpx.URL("http://example.test")) is not http._transport


async def test_a_proxy_is_used_by_httpx_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
    async with listening(echo, "127.0.0.2") as server:
        async with open_client(Access(transport="httpx")) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(server.url())
        assert server.accepted == 0


def test_a_proxy_that_httpx_cannot_use_is_a_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"^--transport httpx: .*SOCKS"):
        open_client(Access(transport="httpx"))


async def test_our_transport_is_the_default() -> None:
    async with open_client(Access()) as http:
        assert isinstance(http._transport, StampedTransport)


# Certificates


@pytest.mark.parametrize("transport", ["stamped", "httpx"])
async def test_whom_tls_trusts(transport: str, tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(answer("{}"))

    async with listening(greet, tls=certificates().server) as server:
        url = server.url(scheme="https")
        async with open_client(Access(transport=transport)) as http:
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                await http.get(url)
        for access in (
            Access(transport=transport, ca_file=authority_file(tmp_path)),
            Access(transport=transport, insecure=True),
        ):
            async with open_client(access) as http:
                assert (await http.get(url)).status_code == 200


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_ca_file_that_is_none_is_a_mistake_of_the_user(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(
        ValueError, match=r"^--ca-file .*ca\.pem: (no such file or directory|no certificate or crl found)$"
    ):
        open_client(Access(ca_file=path))


def test_a_missing_certificate_file_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(ValueError, match=r"^SSL_CERT_FILE, SSL_CERT_DIR: no such file or directory$"):
        open_client(Access())
