"""The client in TypeScript: its own tests, its README, and a day with real servers."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from presence.store.embedded import EmbeddedRedis
from tests.protocol.vectors import BAD, GOOD
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.system.protocol import any_client
from tests.system.protocol.device import ClientProgram, in_typescript
from tests.system.protocol.node_package import PROTOCOL, run

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]


@pytest.fixture
def program(node_client: Path) -> ClientProgram:
    return in_typescript(node_client)


test_what_a_user_hides_is_hidden_from_it = any_client.what_a_user_hides_is_hidden_from_it
test_it_watches_rooms_again_after_a_restart = any_client.it_watches_rooms_again_after_a_restart
test_a_session_with_real_servers = any_client.a_session_with_real_servers
test_it_logs_in_with_a_token_over_tls = any_client.it_logs_in_with_a_token_over_tls


@pytest.mark.timeout(600)  # all those tests in one
def test_its_own_tests_pass_with_every_vector(node_client: Path) -> None:
    names = sorted(
        str(path.relative_to(node_client)) for path in (node_client / "dist" / "test").glob("*.test.js")
    )
    tests = run(node_client, "node", "--test", "--test-reporter=tap", *names)
    assert tests.returncode == 0, re.findall(r"^\s*not ok .*(?:\n.*){20}", tests.stdout, re.MULTILINE)
    assert f"vectors: {len(GOOD)} good and {len(BAD)} bad" in tests.stdout
    counted = dict(re.findall(r"^# (fail|skipped) (\d+)$", tests.stdout, re.MULTILINE))
    assert (counted["fail"], counted["skipped"]) == ("0", "0")


@pytest.mark.nightly
def test_many_steps_of_its_model_find_nothing(node_client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESENCE_MODEL_STEPS", "100000")
    monkeypatch.setenv("PRESENCE_MODEL_SEED", seed := str(time.time_ns() // 1_000_000_000))
    found = run(node_client, "node", "--test", "--test-reporter=tap", "dist/test/model.test.js")
    assert found.returncode == 0, (seed, found.stdout)


def test_the_example_of_its_readme_runs(
    node_client: Path, program: ClientProgram, redis_server: EmbeddedRedis
) -> None:
    with running_server("--redis", redis_server.url, *any_client.FLAGS) as server:
        script = node_client / "dist" / "examples" / f"readme_{server.address[1]}.mjs"
        compiled = (node_client / "dist" / "examples" / "readme.mjs").read_text()
        script.write_text(compiled.replace("7400", str(server.address[1])))
        with program.device(server.address, "bob") as bob:
            bob.told("connected")
            bob.sees("bob")
            example = subprocess.run(["node", script], capture_output=True, text=True, timeout=30, check=True)
            assert bob.told("message")["body"] == {"text": "hello"}
    output = example.stdout.splitlines()
    assert output == ["bob online ", "eve offline ", "sessions reached: 1", "ended: logged out"]
    shown = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert shown == [("online", "login"), ("away", "away"), ("offline", "background")]


APP = """
import { PresenceClient, PresenceError, RecipientOffline } from "presence-client";
import type { Connector, Delivered } from "presence-client";

interface Move { readonly x: number; readonly note?: string }
const connector: Connector = { connect: () => { throw new RangeError("no way there"); } };
const client = new PresenceClient({ connector, uid: "ann", meta: { app: "1.2" } });

export async function play(move: Move): Promise<number> {
  for await (const each of client.messages<Move>({ signal: AbortSignal.timeout(1000) })) {
    const found: Delivered<Move> | undefined = each.type === "message" ? each : undefined;
    console.log(found?.body.x);
  }
  try {
    return await client.sendMessage("bob", move, { signal: AbortSignal.timeout(1000) });
  } catch (error) {
    return error instanceof RecipientOffline ? error.code : 0;
  }
}

client.connect().catch((error: unknown) => {
  console.log(error instanceof PresenceError, String(error));
});
"""


PAGE = """
import { type Options, PresenceClient, storedDevice } from "presence-client/browser";

const kept = new Map<string, string>();
const storage = { getItem: (key: string) => kept.get(key) ?? null, setItem: kept.set.bind(kept) };
const options: Options = { url: "wss://example.org", device: storedDevice(storage) };
export const client = new PresenceClient(options);
"""


def test_the_package_installs_and_works_as_published(node_client: Path, tmp_path: Path) -> None:
    package = json.loads((node_client / "package.json").read_text())
    assert package["scripts"]["prepack"] == "npm run build", (
        "which the fixture has run; others read its results"
    )
    packed = run(
        node_client, "npm", "pack", "--ignore-scripts", "--json", "--pack-destination", str(tmp_path)
    )
    assert packed.returncode == 0, packed.stderr
    assert (node_client / "LICENSE").read_text() == (PROTOCOL.parent / "LICENSE").read_text()
    (contents,) = json.loads(packed.stdout)
    assert {"LICENSE", "README.md", "package.json"} <= {each["path"] for each in contents["files"]}
    (tarball,) = tmp_path.glob("*.tgz")
    app = tmp_path / "app"
    app.mkdir()
    installed = run(app, "npm", "install", "--offline", "--no-audit", "--no-fund", str(tarball))
    assert installed.returncode == 0, installed.stderr
    for name in ("app.mts", "app.cts"):  # as a module, and with require
        (app / name).write_text(APP)
    (app / "app.page.mts").write_text(PAGE)
    modules = node_client / "node_modules"
    options = {"module": "NodeNext", "target": "ES2022", "strict": True, "exactOptionalPropertyTypes": True}
    options |= {"types": ["node"], "typeRoots": [str(modules / "@types")], "skipLibCheck": False}
    (app / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["app.*"]}))
    compiled = run(app, "node", str(modules / "typescript" / "bin" / "tsc"), "-p", ".")
    assert compiled.returncode == 0, compiled.stdout
    (app / "both.mjs").write_text(
        "import { createRequire } from 'node:module';\n"
        "import { PresenceClient } from 'presence-client';\n"
        "const required = createRequire(import.meta.url)('presence-client');\n"
        "console.log(PresenceClient === required.PresenceClient);\n"
    )
    (app / "page.mjs").write_text(
        "import * as page from 'presence-client';\n"
        "import * as same from 'presence-client/browser';\n"
        "console.log(page.PresenceClient === same.PresenceClient, page.TcpConnector);\n"
    )
    outputs = [run(app, "node", name).stdout for name in ("app.mjs", "app.cjs", "both.mjs")]
    outputs.append(run(app, "node", "--conditions=browser", "page.mjs").stdout)
    assert outputs == ["true Unreachable: no way there\n"] * 2 + ["true\n", "true undefined\n"]
