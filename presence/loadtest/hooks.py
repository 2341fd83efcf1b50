"""What locust calls at the beginning and the end of a run, for every kind of user.

A locustfile defines a subclass of `LoadUser`, and calls `register_hooks` once.

Tests: `tests/system/loadtest/test_locust.py`.
"""

import contextlib
import functools
import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gevent
import psutil
from locust import LoadTestShape, User, argument_parser, events, log, runners, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from presence.common.redis_url import redacted
from presence.loadtest.device import LoadDevice
from presence.loadtest.device_tokens import DeviceTokens
from presence.loadtest.options import add_options, check_options, ramp_users
from presence.loadtest.report import Examples, failure_reasons, write_report
from presence.loadtest.roster import Roster, WorkerReport
from presence.loadtest.run import DeviceRun
from presence.loadtest.server_address import raise_file_limit
from presence.store.redis_client import RedisError, open_client

# A device has a hundred objects that live as long as it does: collections that scan all of them again and
# again make keepalives late.
GC_THRESHOLDS = (50_000, 20, 100)
# Locust gives a worker's users to others after 4 s without a heartbeat, and 16,000 devices more are too many.
# A machine that carries the server, too, may well be busy for so long.
WORKER_HEARTBEATS = 60  # one a second

FINAL_REPORT_TIMEOUT_S = 10.0  # of a worker, from the end on: it reads what is left of the streams
FINAL_REPORT_POLL_S = 0.05
START_TIMEOUT_S = 60  # of workers that locust forks here: one that died at its start never connects
JUDGE_NOW = "judge now"  # the message by which a master asks for final reports
RUN_NUMBER = "load_run"  # beside the parsed options, with which locust sends it to workers
NOT_ENDED = "the run ended before it was judged"

FOREVER_S = 1e9
SPAWN_S = 1.0  # between two batches of users that locust starts

logger = logging.getLogger("presence.loadtest")


class LoadUser(User):
    """A user of locust that plays one device or many.

    Attributes:
        connections: devices of each user, unless the option says otherwise.
        device_class: what they do.
        current_run: None between runs.
        tokens: from this process's own options; a page or a master must not choose files and commands.
        examples: cases of broken promises, for the report.
        not_due: offline events that were not due yet when the run ended, of all workers for a master.
        judged_run: number of the run that this process has judged to its end; 0: none.
        has_begun: whether there was a run, or one that could not begin.
        roster: the workers, of a master.
    """

    abstract = True
    host = "127.0.0.1:7400"
    connections: ClassVar[int] = 1
    device_class: ClassVar[type[LoadDevice]] = LoadDevice
    current_run: ClassVar[DeviceRun | None] = None
    tokens: ClassVar[DeviceTokens | None] = None
    examples: ClassVar = Examples()
    not_due: ClassVar[int] = 0
    judged_run: ClassVar[int] = 0
    has_begun: ClassVar[bool] = False
    roster: ClassVar = Roster()
    devices: Sequence[LoadDevice] = ()

    def on_start(self) -> None:
        """Start the devices, spread over `SPAWN_S`.

        Raises:
            StopUser: the run could not begin.
        """
        load = LoadUser.current_run
        if load is None:
            self.environment.events.request.fire(
                request_type="event",
                name="events",
                response_time=None,
                response_length=0,
                exception="the run could not begin; the log says why",
                context={},
            )
            raise StopUser
        count = load.options.connections or self.connections
        self.devices = [self.device_class(load) for _ in range(count)]
        for device in self.devices:
            device.start(SPAWN_S)

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
    hooks.test_stopping.add_listener(_end_run)
    hooks.worker_connect.add_listener(_note_worker)
    hooks.quitting.add_listener(_set_exit_code)
    hooks.report_to_master.add_listener(_extend_report)
    hooks.worker_report.add_listener(_collect_report)
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
    is_master, is_worker = (isinstance(environment.runner, kind) for kind in (MasterRunner, WorkerRunner))
    try:
        if not is_worker:
            check_options(options)
        if options.scenario == "ramp" and not is_worker:
            environment.shape_class = Ramp(options)
            environment.shape_class.runner = environment.runner
        if not is_master or options.processes:
            LoadUser.tokens = DeviceTokens(options)
            if not (is_worker or options.no_events):
                with open_client(options.redis_url) as client:
                    client.ping()
        _prepare_runner(environment, options)
    except ValueError as error:
        refused = str(error)
    except RedisError as error:
        refused = f"cannot reach Redis at {redacted(options.redis_url)}: {error}"
    except OSError as error:
        refused = f"--json-report {options.json_report}: {error.strerror or error}"
    else:
        return
    if not is_worker:
        with contextlib.suppress(OSError):
            _write_report(environment, [refused])
    sys.exit(refused)


def _prepare_runner(environment: Environment, options: Any) -> None:
    runner = environment.runner
    if not isinstance(runner, MasterRunner):  # when interrupted, a worker judges before it leaves the master
        quitting: Any = environment.events.quitting
        quitting.add_listener(_end_run)
    if isinstance(runner, WorkerRunner):
        runner.register_message(JUDGE_NOW, _judge_now)
        return
    _write_report(environment, [NOT_ENDED])  # until the verdict: of a killed run, too, nothing says passed
    if isinstance(runner, MasterRunner):
        LoadUser.roster = Roster(options.expect_workers if options.headless else 0)
        if options.processes and not options.expect_workers_max_wait:
            options.expect_workers_max_wait = START_TIMEOUT_S


def _start_run(environment: Environment, **_: Any) -> None:
    """Follow the streams before the first device logs in."""
    if LoadUser.current_run is not None:
        LoadUser.current_run.release()
        gc.unfreeze()
    LoadUser.current_run, LoadUser.not_due, LoadUser.has_begun = None, 0, True
    LoadUser.examples.take()  # those of the last run
    if isinstance(environment.runner, MasterRunner):
        run = LoadUser.roster.begin(environment.runner.clients)
        setattr(environment.parsed_options, RUN_NUMBER, run)
        return
    try:
        host = environment.host or LoadUser.host
        # A worker that has connected may be told to begin before locust has prepared it.
        tokens = LoadUser.tokens or DeviceTokens(environment.parsed_options)
        load = DeviceRun(environment, host, tokens, LoadUser.examples)
        load.start()
    except (RedisError, ValueError) as error:
        logger.error("cannot begin: %s", error)  # noqa: TRY400 - the message says it all
    else:
        LoadUser.current_run = load


def _freeze_objects(**_: Any) -> None:
    """Objects of now live as long as the run."""
    gc.freeze()


def _end_run(environment: Environment, **_: Any) -> None:
    """Devices that vanish from now on are being stopped."""
    if isinstance(environment.runner, MasterRunner):
        _await_final_reports(environment.runner)
    else:
        _stop_judging(environment)


def _await_final_reports(runner: MasterRunner) -> None:
    """Ask all workers for their final reports while they are still connected; locust waits half a second."""
    roster = LoadUser.roster
    roster.end(time.monotonic())
    runner.send_message(JUDGE_NOW, {RUN_NUMBER: roster.run})
    give_up_at = time.monotonic() + FINAL_REPORT_TIMEOUT_S
    while roster.waiting_for(runner.clients) and time.monotonic() < give_up_at:
        gevent.sleep(FINAL_REPORT_POLL_S)


def _judge_now(environment: Environment, msg: Any, **_: Any) -> None:
    """Handle `JUDGE_NOW`: also a worker that got no devices in this run sends a final report."""
    setattr(environment.parsed_options, RUN_NUMBER, msg.data[RUN_NUMBER])
    _stop_judging(environment)


def _stop_judging(environment: Environment) -> None:
    load, runner = LoadUser.current_run, environment.runner
    if load is not None:
        give_up_at = time.monotonic() + FINAL_REPORT_TIMEOUT_S
        while load.is_closing and time.monotonic() < give_up_at:
            gevent.sleep(FINAL_REPORT_POLL_S)  # asked by the master and interrupted: it must not quit before
        if load.is_closing:
            return  # it has not judged to the end, and the master says so
        if load.is_open:
            LoadUser.not_due = load.close()
            logger.info("%d offline events were not due yet at the end, and are not judged", LoadUser.not_due)
    LoadUser.judged_run = getattr(environment.parsed_options, RUN_NUMBER, 0)
    if isinstance(runner, WorkerRunner):
        # The master does not wait until all devices of a large run are stopped.
        runner._send_stats()  # nothing else sends them now


def _set_exit_code(environment: Environment, **_: Any) -> None:
    """A broken promise or an exceeded limit decides the exit status."""
    if isinstance(environment.runner, WorkerRunner):
        return  # the master knows all
    stats, options = environment.stats, environment.parsed_options
    assert options is not None
    if not (options.headless or LoadUser.has_begun):
        return  # a page on which no run was begun; the report still says that nothing was judged
    reasons = failure_reasons(stats, options)
    if LoadUser.current_run is not None and LoadUser.current_run.is_open:
        reasons.append(NOT_ENDED)
    if log.unhandled_greenlet_exception:
        reasons.append("an error in the load test itself, which is in the log: not all was judged")
    if isinstance(environment.runner, MasterRunner):
        reasons += LoadUser.roster.failures()
        if options.processes:
            _kill_silent_children({each.pid for each in LoadUser.roster.missing()})
    if environment.runner is not None:
        reasons += [f"exception in a user: {each['msg']}" for each in environment.runner.exceptions.values()]
    try:
        _write_report(environment, reasons)
    except OSError as error:
        reasons.append(f"--json-report {options.json_report}: {error.strerror or error}")
    for reason in reasons:
        logger.error("failed: %s", reason)
    if reasons:
        environment.process_exit_code = options.exit_code_on_error
    elif stats.total.num_failures and environment.runner is not None and not environment.runner.exceptions:
        environment.process_exit_code = 0  # as many as are allowed


def _write_report(environment: Environment, reasons: list[str]) -> None:
    options: Any = environment.parsed_options
    if options.json_report:
        path, seen = Path(options.json_report), (LoadUser.examples, LoadUser.not_due)
        write_report(path, environment.stats, reasons, options, *seen)


def _kill_silent_children(pids: set[int]) -> None:
    """End the forked workers that do not answer: locust would wait for them for ever."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.pid in pids or child.status() == psutil.STATUS_STOPPED:
                child.kill()


def _note_worker(client_id: str, **_: Any) -> None:
    LoadUser.roster.connected(client_id)


def _extend_report(data: dict[str, Any], **_: Any) -> None:
    data["examples"] = LoadUser.examples.take()
    data["not_due"], LoadUser.not_due = LoadUser.not_due, 0
    load = LoadUser.current_run
    data["devices"], data["pid"] = load.judge.device_count if load else 0, os.getpid()
    data["judged_run"] = LoadUser.judged_run


def _collect_report(client_id: str, data: dict[str, Any], **_: Any) -> None:
    for words, cases in data["examples"].items():
        LoadUser.examples.add(words, cases)
    LoadUser.not_due += data["not_due"]
    LoadUser.roster.reported(
        client_id, WorkerReport(data["pid"], data["devices"], data["judged_run"]), time.monotonic()
    )
