/** Connections over TLS: which resume the session of the one before. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { type AddressInfo, createServer as createPlain, type Server as PlainServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test, type TestContext } from "node:test";
import { type ConnectionOptions, createServer, type SecureVersion, type Server } from "node:tls";

import { TcpConnector } from "../src/index.js";

const folder = mkdtempSync(join(tmpdir(), "presence-tls-"));
const [key, cert] = [join(folder, "key.pem"), join(folder, "cert.pem")];
const REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=localhost";
execFileSync("openssl", [
  ...REQUEST.split(" "),
  ...["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
]);
const pair = { key: readFileSync(key), cert: readFileSync(cert) };
after(() => {
  rmSync(folder, { recursive: true });
});

/** Listens where a client connects to by name; closes at the end of the test. */
async function listen(t: TestContext, server: PlainServer, port = 0): Promise<number> {
  t.after(() => server.close());
  await once(server.listen(port, "127.0.0.1"), "listening");
  return (server.address() as AddressInfo).port;
}

/** A server that writes a byte on each connection, and what it knows of these: whether they were resumed. */
function tlsServer(maxVersion: SecureVersion): { server: Server; resumed: boolean[] } {
  const resumed: boolean[] = [];
  const server = createServer({ ...pair, maxVersion }, (socket) => {
    resumed.push(socket.isSessionReused());
    socket.on("error", () => undefined);
    socket.write("x");
  });
  return { server, resumed };
}

function connector(port: number, tls: ConnectionOptions = {}): TcpConnector {
  return new TcpConnector({ host: "localhost", port, tls: { ca: pair.cert, ...tls } });
}

/** Connects, and waits for the first byte; resolves with the reason if there is none, else with null. */
function visit(connecting: TcpConnector): Promise<string | null> {
  return new Promise((resolve) => {
    const connection = connecting.connect({
      opened: () => undefined,
      received: () => {
        setImmediate(() => {
          connection.destroy(); // after the ticket, which came with this byte
          resolve(null);
        });
      },
      closed: resolve,
    });
  });
}

for (const version of ["TLSv1.2", "TLSv1.3"] as const) {
  test(`a session is resumed each time the client returns, ${version}`, async (t) => {
    const { server, resumed } = tlsServer(version);
    const ours = connector(await listen(t, server));
    for (let n = 0; n < 3; n += 1) {
      assert.equal(await visit(ours), null);
    }
    assert.deepEqual(resumed, [false, true, true]);
  });

  test(`the certificate is verified again after a day, ${version}`, async (t) => {
    const { server, resumed } = tlsServer(version);
    const ours = connector(await listen(t, server));
    let now = 0;
    t.mock.method(performance, "now", () => now);
    for (const hours of [0, 10, 24, 25, 26]) {
      now = hours * 3_600_000;
      assert.equal(await visit(ours), null);
    }
    assert.deepEqual(resumed, [false, true, true, false, true]);
  });

  test(`a server of another name is refused each time, ${version}`, async (t) => {
    const ours = connector(await listen(t, tlsServer(version).server), { servername: "other.test" });
    for (let n = 0; n < 2; n += 1) {
      assert.match((await visit(ours)) ?? "", /does not match certificate's altnames/);
    }
  });
}

for (const [what, answer, resumes] of [
  ["a lost attempt keeps the session", "", true],
  ["a refused handshake drops it", "\x15\x03\x03\x00\x02\x02\x28", false],
] as const) {
  test(what, async (t) => {
    const first = tlsServer("TLSv1.3");
    const port = await listen(t, first.server);
    const ours = connector(port);
    await visit(ours);
    const ticketKeys = first.server.getTicketKeys();
    await new Promise((resolve) => first.server.close(resolve));
    const failing = createPlain((socket) => {
      socket.on("error", () => undefined).once("data", () => socket.end(answer, "latin1"));
    });
    await listen(t, failing, port);
    assert.notEqual(await visit(ours), null);
    await new Promise((resolve) => failing.close(resolve));
    const second = tlsServer("TLSv1.3");
    second.server.setTicketKeys(ticketKeys);
    await listen(t, second.server, port);
    await visit(ours);
    assert.deepEqual(second.resumed, [resumes]);
  });
}
