"""URLs of one server and of a cluster."""

import pytest

from presence.common.redis_url import database, is_cluster, parse, redacted


@pytest.mark.parametrize(
    ("url", "seeds"),
    [
        *(
            (url, [url])
            for url in ("redis://h", "rediss://u:p@h:1/2?ssl_ca_certs=/ca.pem", "unix:///r.sock?db=1")
        ),
        ("redis+cluster://u:p%40s@a:1,b:2,c", [f"redis://u:p%40s@{host}" for host in ("a:1", "b:2", "c")]),
        ("rediss+cluster://a,b?ssl_ca_certs=/ca", [f"rediss://{host}?ssl_ca_certs=/ca" for host in "ab"]),
    ],
)
def test_a_url_names_the_first_servers(url: str, seeds: list[str]) -> None:
    assert parse(url).seeds == tuple(seeds)
    assert parse(url).is_cluster == is_cluster(url) == ("+cluster" in url)
    assert not is_cluster(None), "the server's own Redis"


def test_a_server_named_by_the_cluster_is_reached_with_the_same_password() -> None:
    address = parse("rediss+cluster://u:p%40ss@a:1,b:2?ssl_ca_certs=/ca.pem")
    assert address.for_server("10.0.0.7", 9) == "rediss://u:p%40ss@10.0.0.7:9?ssl_ca_certs=/ca.pem"
    assert parse("redis+cluster://a").for_server("::1", 9) == "redis://[::1]:9"


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis+cluster://",
        "redis+cluster://a,,b",
        "redis+cluster://a:x",
        "redis+cluster://a:0",
        "redis+cluster://a/1",
        "redis+cluster://a?db=0",
        "redis://h?db=x",
        "redis://h?password=x",
        "redis://h?ssl_ca_certs=/ca.pem",
        "rediss://h?ssl_bogus=1",
        "rediss://h?ssl_ca_certs=",
        "rediss://h?ssl_cert_reqs=bogus",
        "unix+cluster:///r.sock",
        "redis://[h",
    ],
)
def test_an_invalid_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|is not|may have)") as refusal:
        parse(url.replace("//", "//user:s3cret@"))
    assert "s3cret" not in str(refusal.value)


def test_the_password_is_not_shown() -> None:
    assert redacted("redis+cluster://u:s3cret@a:1,b:2") == "redis+cluster://u:***@a:1,b:2"
    assert redacted("redis://:s3cret@h") == "redis://:***@h"
    assert redacted("redis://u@h") == "redis://u@h"
    assert redacted("rediss://:s3cret@h/?ssl_password=k3y&db=1") == "rediss://:***@h/?ssl_password=***&db=1"
    assert redacted("rediss://h/?ssl%5Fpassword=k3y") == "rediss://h/?ssl_password=***"


@pytest.mark.parametrize(
    ("url", "number"),
    [
        (None, 0),
        ("redis://h", 0),
        ("redis://h:6379/0", 0),
        ("rediss://user:secret@h:6379/12", 12),
        ("redis://h/3?db=4", 4),
        ("unix:///tmp/redis.sock", 0),
        ("unix:///tmp/redis.sock?db=2", 2),
        ("redis+cluster://a,b", 0),
    ],
)
def test_a_url_names_its_database(url: str | None, number: int) -> None:
    assert database(url) == number
