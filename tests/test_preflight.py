"""The preflight against servers of many kinds; what it says where there is nothing to measure."""

import json
import socket
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from loadgen.dialects import Api as ApiName
from loadgen.dialects import body
from loadgen.endpoint import Access, open_client, parse_target, secrets_in
from loadgen.exchange import Limits
from loadgen.preflight import Server, Unusable, preflight
from loadgen.record import Secrets
from tests.fakes_api import Api, answer, listening, on_uvloop, refusal
from tests.fakes_client import nothing_leaks
from tests.fakes_tls import certificates, little_trust
from workloads.plan import requests
from workloads.workload import load, override

__all__ = ["little_trust"]


@pytest.fixture(autouse=True)
def no_leaks(little_trust: None) -> Iterator[None]:
    certificates()
    with nothing_leaks():
        yield


async def reach(
    api: Api | str,
    access: Access = Access(),  # noqa: B008 - it is frozen
    *,
    path: str = "",
    model: str | None = None,
    name: ApiName | None = None,
    extra: dict[str, Any] | None = None,
    tokenizer: Callable[[str], int] | None = None,
) -> Server:
    """The preflight of a fake server, or of an address."""

    async def at(url: str) -> Server:
        target = parse_target(url)
        secrets = Secrets([*target.secrets, *secrets_in(access)])
        limits = Limits(connect_s=2, first_s=2, idle_s=2, total_s=5)
        async with open_client(access) as client:
            return await preflight(
                client, target, access, secrets,
                api=name, model=model, extra=extra or {}, limits=limits, tokenizer=tokenizer,
            )  # fmt: skip

    if isinstance(api, str):
        return await at(api)
    async with listening(api) as server:
        return await at(server.url(path))


async def complaint(*arguments: Any, **named: Any) -> str:
    with pytest.raises(Unusable) as caught:
        await reach(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message
    return message


# The address and the model


@pytest.mark.parametrize("word", [None, 7, "", "x" * 201, "a\x1bb", "é", ["h100"], {"gpu": "h100"}])
@on_uvloop
async def test_a_card_may_say_on_what_it_runs(word: Any) -> None:
    assert (await reach(Api(card={"hardware": word}))).facts["hardware"] is None
    assert (await reach(Api(card={"hardware": "7b@h100,dtype=bf16"}))).facts["hardware"] == "7b@h100,dtype=bf16"


@on_uvloop
async def test_the_only_model_is_found() -> None:
    server = await reach(Api(models=["org/tiny-1"]))
    assert server.dialect.model == "org/tiny-1"
    assert server.url.path == "/v1/chat/completions"
    assert server.facts["max_model_len"] == 4096
    assert server.facts["dropped"] == []


@pytest.mark.parametrize(
    ("path", "name", "asked"),
    [
        ("/v1", None, "/v1/chat/completions"),
        ("/v1/", "completions", "/v1/completions"),
        ("/v1/completions", None, "/v1/completions"),
        ("/v1/chat/completions", "completions", "/v1/chat/completions"),
    ],
)
@on_uvloop
async def test_the_api_is_the_one_of_the_address_or_the_one_asked_for(path: str, name: ApiName, asked: str) -> None:
    assert (await reach(Api(), path=path, name=name)).url.path == asked


@on_uvloop
async def test_a_base_without_v1_is_found_behind_a_page_for_every_path() -> None:
    api = Api(answers={"/api/v1/models": answer("<html>", content_type="text/html")})
    api.answers["/api/models"] = answer('{"data": [{"id": "tiny"}]}')
    with pytest.raises(Unusable, match="HTTP 404"):  # the probe itself goes to /api/chat/completions
        await reach(api, path="/api")
    assert [one.path for one in api.received] == ["/api/v1/models", "/api/models", "/api/chat/completions"]


@on_uvloop
async def test_several_models_are_named_for_a_choice() -> None:
    models = [f"m{number}" for number in range(10)]
    assert "choose one with --model (m0, m1, m2, m3, m4, m5, m6, m7 and 2 more)" in await complaint(Api(models=models))
    assert (await reach(Api(models=models), model="m9")).dialect.model == "m9"


@pytest.mark.parametrize("models", [answer('{"data": []}'), answer("nothing", "404 Not Found")])
@on_uvloop
async def test_without_a_list_a_model_must_be_named(models: bytes) -> None:
    api = Api(answers={"/v1/models": models, "/models": models})
    assert "name one with --model" in await complaint(api)
    server = await reach(api, model="tiny")
    assert server.dialect.model == "tiny"
    assert server.facts["max_model_len"] is None


@on_uvloop
async def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    message = await complaint(Api(models=["a", "b"]), model="c")
    assert "does not serve the model c: choose one with --model (a, b)" in message


@pytest.mark.parametrize(
    "page",
    [answer("<html>", content_type="text/html; x"), answer("[]"), answer("{"), answer('{"data": 1}'), answer("1")],
)
@on_uvloop
async def test_what_is_no_list_of_models_is_said_to_be_none(page: bytes) -> None:
    message = await complaint(Api(answers={"/v1/models": page, "/models": page}))
    assert "is no OpenAI-compatible API" in message
    assert ("(text/html)" if b"html" in page else "(application/json)") in message


@on_uvloop
async def test_a_server_that_fails_says_so_itself() -> None:
    message = await complaint(Api(answers={"/v1/models": refusal("still loading", "503 Service Unavailable")}))
    assert "answers GET /v1/models with HTTP 503: still loading" in message


@on_uvloop
async def test_a_404_of_the_probe_doubts_the_address_and_the_api() -> None:
    message = await complaint(Api(answers={"/v1/chat/completions": answer("no", "404 Not Found")}))
    assert "HTTP 404: no; is the address right, and does the server have this API (--api" in message


# Keys


@pytest.mark.parametrize("open_list", [False, True], ids=["list", "probe"])
@pytest.mark.parametrize(
    ("access", "source"),
    [
        (Access(api_key_env="SOME_KEY"), "(key: none, SOME_KEY is not set)"),
        (Access(api_key="CANARY-1", api_key_env="SOME_KEY"), "(key: from SOME_KEY)"),
        (Access(headers=(("Authorization", "Bearer CANARY-1"),)), "(key: from --header)"),
    ],
)
@on_uvloop
async def test_a_refused_key_says_where_it_came_from_and_not_what_it_is(
    access: Access, source: str, open_list: bool
) -> None:
    api = Api(key="right")
    if open_list:
        api.answers["/v1/models"] = answer('{"data": [{"id": "tiny"}]}')
        api.answers["/v1/chat/completions"] = refusal(f"bad key {access.api_key}", "403 Forbidden")
    message = await complaint(api, access)
    assert f"HTTP {403 if open_list else 401}: bad key" in message
    assert source in message
    assert "CANARY" not in message
    assert len(api.asked()) == int(open_list)  # it is not asked again with less


@on_uvloop
async def test_the_right_key_is_let_in() -> None:
    assert (await reach(Api(key="right"), Access(api_key="right"))).dialect.model == "tiny"


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("http://127.0.0.1:{}/v1/models?x=CANARY", "http://127.0.0.1:{}/v1/models"),
        ("/login", "/login"),
        ("http://x:y", "http://127.0.0.1"),
    ],
)
@on_uvloop
async def test_a_redirect_is_not_followed_and_gets_no_key(location: str, shown: str) -> None:
    other = Api()
    async with listening(other) as elsewhere:
        where = location.format(elsewhere.port)
        moved = answer("", "307 Temporary Redirect", "text/plain", f"Location: {where}")
        message = await complaint(Api(answers={"/v1/models": moved}), Access(api_key="CANARY-1"))
        assert ("redirects to " if "x:y" not in where else "Invalid URL") in message
        assert shown.format(elsewhere.port) in message
        assert "CANARY" not in message
        assert elsewhere.accepted == 0


# The way there


@on_uvloop
async def test_nobody_listening() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    message = await complaint(f"http://127.0.0.1:{port}")
    assert f"cannot connect to 127.0.0.1:{port}: connection refused; is the server running" in message


@on_uvloop
async def test_what_the_ways_of_tls_to_fail_suggest() -> None:
    async with listening(Api(), tls=certificates().server) as server:
        assert "--ca-file, or accept any certificate with --insecure" in await complaint(server.url(scheme="https"))
        assert (await reach(server.url(scheme="https"), Access(insecure=True))).dialect.model == "tiny"

    async def no_tls(reader: Any, writer: Any) -> None:
        await reader.read(1)
        writer.write(answer("what?", "400 Bad Request"))

    async with listening(no_tls) as server:
        assert "does it speak TLS, https rather than http?" in await complaint(server.url(scheme="https"))


@on_uvloop
async def test_what_speaks_no_http() -> None:
    async def greet(_: object, writer: Any) -> None:
        writer.write(b"SSH-2.0-x\r\n")

    async with listening(greet) as server:
        assert "not a valid HTTP response" in await complaint(server.url())


# What the server accepts


@pytest.mark.parametrize(
    ("refuses", "asked_times"),
    [
        (["ignore_eos"], 2),
        (["min_tokens"], 2),
        (["stream_options"], 2),
        (["min_tokens", "ignore_eos"], 3),
        (["stream_options", "min_tokens", "ignore_eos"], 4),
    ],
)
@on_uvloop
async def test_options_that_are_refused_by_name_are_dropped_and_no_others(refuses: list[str], asked_times: int) -> None:
    api = Api(refuses=refuses, tokenizes=False)
    server = await reach(api)
    assert sorted(server.facts["dropped"]) == sorted(refuses)
    kept = {"stream_options", "min_tokens", "ignore_eos"} - set(refuses)
    assert kept == {"stream_options", "min_tokens", "ignore_eos"} & set(json.loads(body(server.dialect, "x", 1)))
    assert all(not set(refuses) & set(fields) for fields in api.asked()[asked_times - 1 :])
    assert server.facts["usage"] is ("stream_options" not in refuses)


@on_uvloop
async def test_a_refusal_that_names_nothing_costs_the_least_usual_first() -> None:
    server = await reach(Api(refuses=["ignore_eos"], says="bad request"))
    assert server.facts["dropped"] == ["ignore_eos"]
    server = await reach(Api(refuses=["stream_options"], says="bad request"))
    assert server.facts["dropped"] == ["ignore_eos", "min_tokens", "stream_options"]


@on_uvloop
async def test_the_newer_name_of_the_limit_is_taken_up() -> None:
    says = "Unsupported parameter: '{}'. Use 'max_completion_tokens' instead."
    server = await reach(Api(refuses=["max_tokens"], says=says))
    assert server.facts["limit_key"] == "max_completion_tokens"
    assert server.facts["dropped"] == ["max_tokens"]


@on_uvloop
async def test_what_is_refused_whatever_is_dropped_is_told_as_it_was_first() -> None:
    api = Api(refuses=["temperature"], says="temperature must be 1")
    message = await complaint(api, extra={"temperature": 0})
    assert "the probe failed (http_status): HTTP 400: temperature must be 1" in message
    assert len(api.asked()) == 4


@on_uvloop
async def test_running_usage_is_asked_for_only_where_events_carry_several_tokens() -> None:
    assert (await reach(Api())).dialect.running_usage is False
    assert (await reach(Api(event_tokens=3))).dialect.running_usage is True
    assert (await reach(Api(event_tokens=3, counts=False))).dialect.running_usage is False
    assert (await reach(Api(event_tokens=3, refuses=["stream_options"]))).dialect.running_usage is False


@on_uvloop
async def test_every_probe_has_a_prompt_of_its_own_but_for_what_is_tried_again() -> None:
    api = Api(event_tokens=3)
    server = await reach(api)
    prompts = [fields["messages"][0]["content"] for fields in api.asked()]
    assert len(set(prompts)) == len(prompts) == server.facts["preflight_requests"]


# How the server counts


def planned_and_counted(server: Server, api: Api) -> list[tuple[int, int]]:
    """Of a plan's requests: the input tokens it wants, and what the server counts."""
    workload = override(load("chat"), "uniform:8..300", "4")
    plan = requests(workload, server.vocabulary, seed=3, salt="s", level=0, as_ids=server.as_ids)
    bodies = ((one.want_input_tokens, body(server.dialect, one.prompt, 4)) for one in islice(plan, 50))
    return [(wanted, api.prompt_tokens(json.loads(sent))) for wanted, sent in bodies if wanted is not None]


@pytest.mark.parametrize(
    ("api", "counted_by"),
    [
        (Api(), "tokenize"),
        (Api(tokenize_template_tokens=0), "tokenize"),
        (Api(tokenize_template_tokens=30), "tokenize"),
        (Api(tokenize_flat=True), "usage"),
        (Api(tokenizes=False), "usage"),
        (Api(counts=False), "tokenize"),
        (Api(template_tokens=1), "tokenize"),
    ],
    ids=["both", "no template", "other template", "flat", "usage", "tokenize", "small template"],
)
@on_uvloop
async def test_prompts_have_the_length_that_the_server_counts(api: Api, counted_by: str) -> None:
    server = await reach(api)
    assert server.facts["prompt_tokens_from"] == counted_by
    assert server.facts["template_tokens"] == api.template_tokens
    assert server.facts["prompt_as"] == "text"
    assert all(counted == max(wanted, api.template_tokens + 1) for wanted, counted in planned_and_counted(server, api))


@pytest.mark.parametrize(
    ("api", "as_ids"),
    [(Api(), True), (Api(takes_ids=False), False), (Api(tokenizes=False), False), (Api(counts=False), False)],
    ids=["ids", "no ids", "no tokenize", "no usage"],
)
@on_uvloop
async def test_text_completions_take_token_ids_where_they_can(api: Api, as_ids: bool) -> None:
    server = await reach(api, name="completions")
    assert server.as_ids is as_ids
    assert server.facts["prompt_as"] == ("token ids" if as_ids else "text")
    assert server.facts["template_tokens"] == (None if as_ids else 1)  # one special token goes before a text
    assert all(counted == wanted for wanted, counted in planned_and_counted(server, api))


@on_uvloop
async def test_a_tokenizer_counts_where_the_server_does_not() -> None:
    api = Api(tokenizes=False, counts=False, template_tokens=0)

    def count(text: str) -> int:
        return api.prompt_tokens({"messages": [{"content": text}]})

    server = await reach(api, tokenizer=count)
    assert server.facts["prompt_tokens_from"] == "tokenizer"
    assert all(counted == wanted for wanted, counted in planned_and_counted(server, api))


@on_uvloop
async def test_without_any_count_a_word_is_taken_for_a_token() -> None:
    server = await reach(Api(tokenizes=False, counts=False))
    assert server.facts["prompt_tokens_from"] == "guess"
    assert server.facts["template_tokens"] is None
    assert server.facts["usage"] is False


@on_uvloop
async def test_counts_that_do_not_add_up_are_not_used() -> None:
    assert (await reach(Api(tokenizes=False, word_tokens=2))).facts["prompt_tokens_from"] == "guess"


@on_uvloop
async def test_what_the_probe_cost_is_known() -> None:
    api = Api(tokenizes=False)
    server = await reach(api)
    assert server.facts["preflight_requests"] == len(api.asked())
    assert server.facts["preflight_output_tokens"] == sum(fields["max_tokens"] for fields in api.asked())
    first_s, token_s = server.request_tokens_s
    assert 0 < first_s < 2
    assert 0 <= token_s < 2
    assert server.facts["stamped"] is True
