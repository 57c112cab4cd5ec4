"""The official OpenAI SDK against a router with simulated engines.

run.sh starts both. The tests expect the model inferrail/sim-8b with the alias sim, on engines that report cached tokens
in usage. INFERRAIL_BASE_URL names the router, by default http://localhost:8080/v1.
"""

import asyncio
import os
import re
import time
import urllib.request
import uuid

import openai
import pytest

BASE_URL = os.environ.get("INFERRAIL_BASE_URL", "http://localhost:8080/v1")
MODEL, ALIAS = "inferrail/sim-8b", "sim"
HELLO = [{"role": "user", "content": "Hello"}]


def options():
    # Without retries a test sees the first answer, and a hang ends.
    return {"base_url": BASE_URL, "api_key": "unused", "max_retries": 0, "timeout": 60}


@pytest.fixture
def client():
    with openai.OpenAI(**options()) as c:
        yield c


def fresh(text="tell me something"):
    """A prompt that no earlier test, and no earlier run, has left in a cache."""
    return f"{uuid.uuid4()}: {text}"


def exactly(n):
    """Arguments for an answer of n tokens, whatever the model would do."""
    return {"max_tokens": n, "extra_body": {"ignore_eos": True}}


def check_usage(usage, completion=None):
    assert usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    if completion is not None:
        assert usage.completion_tokens == completion


def cached(usage):
    # vLLM leaves the details out when nothing was cached.
    details = usage.prompt_tokens_details
    return details.cached_tokens if details and details.cached_tokens else 0


def test_models_lists_the_model_and_its_alias(client):
    ids = [m.id for m in client.models.list()]
    assert MODEL in ids
    assert ALIAS in ids


@pytest.mark.parametrize("name", [MODEL, ALIAS])
def test_chat(client, name):
    r = client.chat.completions.create(model=name, messages=HELLO, **exactly(16))
    assert r.object == "chat.completion"
    assert r.model == MODEL
    assert r.choices[0].message.role == "assistant"
    assert r.choices[0].message.content
    assert r.choices[0].finish_reason == "length"
    check_usage(r.usage, 16)


@pytest.mark.parametrize("name", [MODEL, ALIAS])
def test_chat_stream_with_usage(client, name):
    stream = client.chat.completions.create(
        model=name, messages=HELLO, stream=True, stream_options={"include_usage": True}, **exactly(16)
    )
    chunks = list(stream)
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1
    assert {c.model for c in chunks} == {MODEL}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    check_usage(chunks[-1].usage, 16)
    assert all(c.usage is None for c in chunks[:-1])


def test_chat_stream_without_usage(client):
    chunks = list(client.chat.completions.create(model=ALIAS, messages=HELLO, stream=True, max_tokens=8))
    assert all(len(c.choices) == 1 and c.usage is None for c in chunks)


def test_streamed_tokens_arrive_one_after_another(client):
    stream = client.chat.completions.create(model=ALIAS, messages=HELLO, stream=True, **exactly(32))
    times = [time.monotonic() for c in stream if c.choices[0].delta.content]
    # 32 tokens at 20 ms each: a router that buffered the answer would hand out all of them at once.
    assert times[-1] - times[0] > 0.3


@pytest.mark.parametrize("prompt", ["Once upon a time", [11, 12, 13, 14]], ids=["text", "token ids"])
def test_completion(client, prompt):
    r = client.completions.create(model=ALIAS, prompt=prompt, **exactly(12))
    assert r.object == "text_completion"
    assert r.choices[0].text
    assert r.choices[0].finish_reason == "length"
    check_usage(r.usage, 12)


def test_completion_stream(client):
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt="Once upon a time",
            stream=True,
            stream_options={"include_usage": True},
            **exactly(12),
        )
    )
    assert "".join(c.choices[0].text for c in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    check_usage(chunks[-1].usage, 12)


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(client, stream):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="no-such-model", messages=HELLO, stream=stream)
    assert "no-such-model" in e.value.message


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": -1}, {"top_p": 2}, {"messages": "Hello"}, {"stream_options": {"include_usage": True}}],
    ids=lambda w: next(iter(w)),
)
def test_bad_request(client, wrong):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(**{"model": ALIAS, "messages": HELLO, **wrong})
    assert e.value.message


def test_response_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model=ALIAS, messages=HELLO, extra_headers={"x-request-id": "e2e-1234"}, **exactly(4)
    )
    body = raw.parse()
    assert raw.headers["x-inferrail-replica"]
    assert raw.headers["x-inferrail-policy"]
    assert int(raw.headers["x-inferrail-prompt-tokens"]) == body.usage.prompt_tokens
    assert raw.headers["x-request-id"] == "e2e-1234"
    assert body.id == "chatcmpl-e2e-1234"
    assert body._request_id == "e2e-1234"


def test_cached_tokens_grow_over_a_chat_and_are_predicted(client):
    messages = [{"role": "system", "content": fresh("You are brief. " * 60)}]
    counts = []
    for question in ["What is a cache?", "Who invented it?", "How large are they?", "And how fast?"]:
        messages.append({"role": "user", "content": question})
        raw = client.chat.completions.with_raw_response.create(model=ALIAS, messages=messages, **exactly(32))
        r = raw.parse()
        assert int(raw.headers["x-inferrail-prompt-tokens"]) == r.usage.prompt_tokens
        assert int(raw.headers["x-inferrail-cached-tokens"]) == cached(r.usage)
        counts.append(cached(r.usage))
        messages.append({"role": "assistant", "content": r.choices[0].message.content})
    assert counts[0] == 0
    assert all(a < b for a, b in zip(counts, counts[1:])), counts


def running(replica):
    """Requests that an engine is computing, by its own metrics page."""
    # Loopback is never reached through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{replica}/metrics", timeout=10) as page:
        text = page.read().decode()
    return float(re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.M).group(1))


def test_closing_a_stream_stops_the_engine(client):
    with client.chat.completions.with_streaming_response.create(
        model=ALIAS, messages=[{"role": "user", "content": fresh()}], stream=True, **exactly(2000)
    ) as response:
        replica = response.headers["x-inferrail-replica"]
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        assert running(replica) == 1
    # The whole answer would take 40 s.
    deadline = time.monotonic() + 5
    while running(replica) > 0:
        assert time.monotonic() < deadline, "the engine goes on after the client has left"
        time.sleep(0.02)
    check_usage(client.chat.completions.create(model=ALIAS, messages=HELLO, **exactly(4)).usage, 4)


def test_fifty_concurrent_streams():
    async def one(client, i):
        stream = await client.chat.completions.create(
            model=ALIAS,
            messages=[{"role": "user", "content": fresh(f"question {i}")}],
            stream=True,
            stream_options={"include_usage": True},
            **exactly(20),
        )
        text, usage = "", None
        async for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        return text, usage

    async def all_of_them():
        async with openai.AsyncOpenAI(**options()) as client:
            return await asyncio.gather(*(one(client, i) for i in range(50)))

    results = asyncio.run(all_of_them())
    assert len(results) == 50
    for text, usage in results:
        assert text
        check_usage(usage, 20)
