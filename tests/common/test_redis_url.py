"""URLs of one server, of a cluster, and of Sentinels."""

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


def test_sentinels_have_a_password_of_their_own_and_name_the_primary() -> None:
    url = parse(
        "redis+sentinel://u:p%40ss@a:1,b,[::1]/mymaster/3?sentinel_username=s&sentinel_password=q%2Fx"
    )
    assert url.sentinels == ("redis://s:q%2Fx@a:1", "redis://s:q%2Fx@b:26379", "redis://s:q%2Fx@[::1]:26379")
    assert (url.service, url.is_cluster) == ("mymaster", False)
    assert url.for_server("10.0.0.7", 9) == "redis://u:p%40ss@10.0.0.7:9/3"
    secured = parse("rediss+sentinel://:p@a/name?ssl_ca_certs=%2Fca.pem")
    assert secured.sentinels == ("rediss://a:26379?ssl_ca_certs=%2Fca.pem",)
    assert secured.for_server("::1", 9) == "rediss://:p@[::1]:9/0?ssl_ca_certs=%2Fca.pem"


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis+sentinel://a,b",
        "redis+sentinel://a,b/",
        "redis+sentinel://a,b/name/x",
        "redis+sentinel://a,,b/name",
        "redis+sentinel://a/name?db=1",
        "redis+sentinel://a/name?password=x",
        "unix+sentinel:///r.sock",
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
    hidden = "redis+sentinel://u:***@a:1,b/name?sentinel_password=***"
    assert redacted("redis+sentinel://u:s3cret@a:1,b/name?sentinel_password=k3y") == hidden
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
        ("redis+sentinel://a,b/name", 0),
        ("redis+sentinel://a,b/name/5", 5),
    ],
)
def test_a_url_names_its_database(url: str | None, number: int) -> None:
    assert database(url) == number
