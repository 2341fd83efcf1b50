"""URLs of one server and of a cluster."""

import pytest

from presence.store.address import is_cluster, parse, redacted


def test_one_server_is_its_own_seed() -> None:
    for url in ("redis://h", "rediss://u:p@h:1/2?ssl_ca_certs=/ca.pem", "unix:///r.sock?db=1"):
        address = parse(url)
        assert (address.is_cluster, address.seeds) == (False, (url,))


def test_a_cluster_is_entered_by_all_servers_that_are_named() -> None:
    address = parse("redis+cluster://u:p%40ss@a:1,b:2,c")
    assert address.is_cluster
    assert address.seeds == ("redis://u:p%40ss@a:1", "redis://u:p%40ss@b:2", "redis://u:p%40ss@c")


def test_options_and_transport_are_those_of_each_server() -> None:
    address = parse("rediss+cluster://a:1,b:2?ssl_ca_certs=/ca.pem")
    assert address.seeds == ("rediss://a:1?ssl_ca_certs=/ca.pem", "rediss://b:2?ssl_ca_certs=/ca.pem")


def test_a_server_that_the_cluster_names_is_reached_with_the_same_password() -> None:
    address = parse("rediss+cluster://u:p%40ss@a:1,b:2?ssl_ca_certs=/ca.pem")
    assert address.at("10.0.0.7", 9) == "rediss://u:p%40ss@10.0.0.7:9?ssl_ca_certs=/ca.pem"
    assert parse("redis+cluster://a").at("::1", 9) == "redis://[::1]:9"


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
def test_what_is_no_such_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|is not|may have)") as refusal:
        parse(url.replace("//", "//user:s3cret@"))
    assert "s3cret" not in str(refusal.value)


def test_the_password_is_not_shown() -> None:
    assert redacted("redis+cluster://u:s3cret@a:1,b:2") == "redis+cluster://u:***@a:1,b:2"
    assert redacted("redis://:s3cret@h") == "redis://:***@h"
    assert redacted("redis://u@h") == "redis://u@h"
    assert redacted("rediss://:s3cret@h/?ssl_password=k3y&db=1") == "rediss://:***@h/?ssl_password=***&db=1"
    assert redacted("rediss://h/?ssl%5Fpassword=k3y") == "rediss://h/?ssl_password=***"


def test_serves_own_redis_is_no_cluster() -> None:
    assert not is_cluster(None)
    assert is_cluster("redis+cluster://h")
