/** Connections over TCP to a name with two addresses. */

import assert from "node:assert/strict";
import dns from "node:dns";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { TcpConnector } from "../src/index.js";

const [SLOW, REFUSING] = ["127.0.0.1", "127.0.0.99"];
const BLOCKED_MS = 700; // and then the system repeats the first packet, a second after it was dropped

/** Listens with room for two connections, and accepts none for a time. */
const LISTENER = `
  const { createServer } = require("node:net");
  const { parentPort } = require("node:worker_threads");
  const server = createServer((socket) => socket.on("error", () => undefined));
  server.listen({ host: "${SLOW}", port: 0, backlog: 1 }, () => {
    parentPort.postMessage(server.address().port);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ${BLOCKED_MS});
  });
`;

function withAddresses(t: { after(callback: () => void): void }, addresses: readonly string[]): void {
  const real = dns.lookup;
  const lookup = (
    _host: string,
    _options: unknown,
    callback: (error: null, found: object[]) => void,
  ): void => {
    callback(
      null,
      addresses.map((address) => ({ address, family: 4 })),
    );
  };
  dns.lookup = lookup as unknown as typeof dns.lookup;
  t.after(() => {
    dns.lookup = real;
  });
}

/** Resolves with null when it is connected, otherwise with the reason why it is not. */
function outcome(port: number): Promise<string | null> {
  return new Promise((resolve) => {
    const connection = new TcpConnector({ host: "presence.test", port }).connect({
      opened: () => {
        connection.destroy();
        resolve(null);
      },
      received: () => undefined,
      closed: resolve,
    });
  });
}

test("a slow path is given its time although the other address refuses", async (t) => {
  const worker = new Worker(LISTENER, { eval: true });
  const [port] = (await once(worker, "message")) as [number];
  const fillers: Socket[] = [];
  t.after(async () => {
    fillers.forEach((socket) => socket.destroy());
    await worker.terminate();
  });
  for (let n = 0; n < 2; n += 1) {
    fillers.push(connect(port, SLOW).on("error", () => undefined));
    await once(fillers.at(-1) as Socket, "connect");
  }
  withAddresses(t, [SLOW as string, REFUSING as string]);
  assert.equal(await outcome(port), null);
});

test("if no address answers the reasons of all are told", async (t) => {
  withAddresses(t, [REFUSING as string, "127.0.0.98"]);
  assert.match((await outcome(1)) ?? "", /ECONNREFUSED 127\.0\.0\.99.*; .*ECONNREFUSED 127\.0\.0\.98/);
});
