"""A client that shakes hands and stays silent, with TLS over streams."""

from presence.transports.limits import Limits
from protocol import Code, Kind
from tests.cells import brief
from tests.transports.test_tls_streams import serving_tls


async def test_who_shakes_hands_and_is_silent_is_told_that_his_time_is_over() -> None:
    async with serving_tls(Limits(login_timeout=2.0)) as server:
        client = await server.connect()
        assert [brief(each) for each in await client.rest()] == [(Kind.ERROR, None, Code.LOGIN_TIMEOUT)]
        client.close()
        assert server.transport.statistics().login_timeouts == 1
