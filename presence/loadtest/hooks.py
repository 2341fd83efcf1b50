"""What locust calls at the beginning and the end of a run, for every kind of user.

A locustfile imports `LoadUser`, and calls `register_hooks` once.
"""

import functools
import gc
import logging
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import gevent
from locust import LoadTestShape, User, argument_parser, events, runners, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from presence.common.redis_url import redacted
from presence.loadtest.connection import raise_file_limit
from presence.loadtest.device import Device
from presence.loadtest.options import add_options, exceeded_limits, ramp_users, scenario
from presence.loadtest.run import DeviceRun
from presence.store.client import RedisError, open_client

# A device has a hundred objects that live as long as it does: collections that scan all of them again and
# again make keepalives late.
GC_THRESHOLDS = (50_000, 20, 100)
# Locust gives a worker's users to others after 4 s without a heartbeat, and 16,000 devices more are too many.
# A machine that carries the server, too, may well be busy for so long.
WORKER_HEARTBEATS = 60  # one a second

FOREVER_S = 1e9
SPAWN_S = 1.0  # between two batches of users that locust starts

logger = logging.getLogger("presence.loadtest")


class LoadUser(User):
    """A user of locust that plays one device or many.

    Attributes:
        current_run: None between runs.
    """

    abstract = True
    host = "127.0.0.1:7400"
    current_run: ClassVar[DeviceRun | None] = None
    devices: Sequence[Device] = ()

    def start_devices(self, devices: int, within_s: float) -> None:
        """Start devices, spread over some seconds.

        Raises:
            StopUser: the run could not begin.
        """
        if LoadUser.current_run is None:
            self.environment.events.request.fire(
                request_type="event",
                name="events",
                response_time=None,
                response_length=0,
                exception=RuntimeError("the run could not begin; the log says why"),
                context={},
            )
            raise StopUser
        self.devices = [Device(LoadUser.current_run) for _ in range(devices)]
        for device in self.devices:
            device.start(within_s)

    def on_stop(self) -> None:
        for device in self.devices:
            device.stop()

    @task
    def wait_forever(self) -> None:
        gevent.sleep(FOREVER_S)


class Ramp(LoadTestShape):
    """Load that rises in equal steps to ``--users`` within ``--run-time``, each reached at ``--spawn-rate``.

    Raises:
        ValueError: there is no run time.
    """

    abstract = True  # not for locust to find: the option decides
    use_common_options = True

    def __init__(self, options: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # locust's
        if not options.run_time:
            raise ValueError("--scenario ramp needs --run-time")
        self._users = options.num_users or 1
        self._rate = options.spawn_rate or 1
        self._run_s = float(options.run_time)

    def tick(self) -> tuple[int, float] | None:
        """Return how many users there should be now, and how fast to get there; None at the end."""
        elapsed_s: float = self.get_run_time()  # type: ignore[no-untyped-call] # locust's
        users = ramp_users(elapsed_s, self._run_s, self._users)
        return None if users is None else (users, self._rate)


def register_hooks() -> None:
    hooks: Any = events  # locust's are untyped
    hooks.init_command_line_parser.add_listener(_add_options)
    hooks.init.add_listener(_prepare)
    hooks.test_start.add_listener(_start_run)
    hooks.spawning_complete.add_listener(_freeze_objects)
    hooks.test_stopping.add_listener(_stop_judging)
    hooks.quitting.add_listener(_set_exit_code)
    gevent.config.track_greenlet_tree = False  # who spawned a device is known; to note it costs 2 KiB each
    gc.set_threshold(*GC_THRESHOLDS)
    runners.HEARTBEAT_LIVENESS = WORKER_HEARTBEATS
    # A worker asks for this constant a hundred times for every portion of users; each time locust builds and
    # runs a parser: together a second of CPU, in which no device sends keepalives.
    locusts: Any = argument_parser
    locusts.default_args_dict = functools.cache(locusts.default_args_dict)


def _add_options(parser: Any, **_: Any) -> None:
    add_options(parser)


def _prepare(environment: Environment, **_: Any) -> None:
    """Refuse to start with options or a Redis that cannot work."""
    options: Any = environment.parsed_options
    raise_file_limit()
    # A worker gets its options from the master, later. A master has no devices, and may run where Redis
    # cannot be reached, unless it has forked its workers.
    is_standalone = not isinstance(environment.runner, MasterRunner | WorkerRunner)
    try:
        if options.scenario == "ramp" and not isinstance(environment.runner, WorkerRunner):
            environment.shape_class = Ramp(options)
            environment.shape_class.runner = environment.runner
        if is_standalone or (options.master and options.processes):
            scenario(options)
            with open_client(options.redis_url) as client:
                client.ping()
    except ValueError as error:
        sys.exit(str(error))
    except RedisError as error:
        sys.exit(f"cannot reach Redis at {redacted(options.redis_url)}: {error}")


def _start_run(environment: Environment, **_: Any) -> None:
    """Follow the streams before the first device logs in."""
    LoadUser.current_run = None
    if isinstance(environment.runner, MasterRunner):
        return
    try:
        load = DeviceRun(environment, environment.host or LoadUser.host)
        load.start()
    except (RedisError, ValueError) as error:
        logger.error("cannot begin: %s", error)  # noqa: TRY400 - the message says it all
    else:
        LoadUser.current_run = load


def _freeze_objects(**_: Any) -> None:
    """Objects of now live as long as the run."""
    gc.freeze()


def _stop_judging(environment: Environment, **_: Any) -> None:
    """Devices that vanish from now on are being stopped."""
    if LoadUser.current_run is not None:
        logger.info("%d offline events are not due yet", LoadUser.current_run.close())
    if isinstance(environment.runner, WorkerRunner):
        # The master does not wait until all devices of a large run are stopped.
        environment.runner._send_stats()  # nothing else sends them now


def _set_exit_code(environment: Environment, **_: Any) -> None:
    """A broken promise or an exceeded limit decides the exit status."""
    if isinstance(environment.runner, WorkerRunner):
        return  # the master knows all
    stats = environment.stats
    over = exceeded_limits(stats.entries, stats.total.num_failures, environment.parsed_options)
    for each in over:
        logger.error("over the limit: %s", each)
    if over:
        environment.process_exit_code = 1
    elif stats.total.num_failures and environment.runner is not None and not environment.runner.exceptions:
        environment.process_exit_code = 0  # as many as are allowed
