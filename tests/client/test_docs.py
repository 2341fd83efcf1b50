"""The examples in the docstrings run, against a real server."""

import doctest

import presence.client
from presence.embedded import EmbeddedRedis
from tests.live.server_process import running_server


def test_the_examples_of_the_client_say_what_they_print(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url) as server:
        text = (presence.client.__doc__ or "").replace("7400", str(server.address[1]))
        examples = doctest.DocTestParser().get_doctest(text, {}, "presence.client", None, 0)
        result = doctest.DocTestRunner().run(examples)
    print(f"docstring of presence.client: {result.attempted} lines ran, {result.failed} differ")
    assert (result.attempted >= 6, result.failed) == (True, 0)
