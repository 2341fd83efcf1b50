"""The time to log in over TLS is up: it has to be long enough for a handshake."""

import pytest

from protocol import Other
from tests.cells import AT_TRANSPORT, Cell
from tests.transports.test_both import try_cell


@pytest.mark.parametrize("cell", [cell for cell in AT_TRANSPORT if cell[1] is Other.LOGIN_TIMEOUT], ids=str)
async def test_the_time_to_log_in(cell: Cell) -> None:
    await try_cell("tls", cell)
