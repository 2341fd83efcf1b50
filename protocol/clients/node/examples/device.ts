/**
 * One device on the command line: prints a line of JSON for each event and for each answer to a command.
 *
 *     node dist/examples/device.js 127.0.0.1 7400 ann phone
 *     node dist/examples/device.js tls://example.org 7443 ann
 *     node dist/examples/device.js 127.0.0.1 7400 ann phone @token
 *
 * The last argument names a token file; it is read before each login, and before a token expires.
 *
 * Commands are lines of JSON, a verb and its arguments: ["query", ["bob"]], ["watch", ["bob"]], ["unwatch",
 * ["bob"]], ["queryRooms", ["lobby"]], ["watchRooms", ["lobby"]], ["unwatchRooms", ["lobby"]], ["message", "bob",
 * {"text": "hi"}], ["update", {"meta": {"app": "1.2"}}], ["away"], ["back"], ["logout", "background"]. It logs out
 * at the end of the input.
 */

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

import { type Change, EncodeError, PresenceClient, PresenceError } from "../src/index.js";

const [host = "127.0.0.1", port = "7400", uid = "ann", device, file] = process.argv.slice(2);
const client = new PresenceClient({
  host: host.replace(/^tls:../, ""),
  port: Number(port),
  tls: host.startsWith("tls://"),
  uid,
  device: device || undefined,
  token: file && (async () => (await readFile(file.replace(/^@/, ""), "utf8")).trim()),
  persistent: true,
});

/** Makes a value printable as JSON: Maps become objects, binary becomes hex, errors become their names. */
function toPrintable(_key: string, value: unknown): unknown {
  if (value instanceof Map) {
    return Object.fromEntries(value as Map<string, unknown>);
  }
  if (value instanceof Uint8Array) {
    return Buffer.from(value).toString("hex");
  }
  if (value instanceof Error) {
    return { error: value.name, message: value.message };
  }
  return typeof value === "bigint" ? value.toString() : value;
}

function print(line: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify(line, toPrintable)}\n`);
}

function execute([verb, ...rest]: readonly unknown[]): Promise<unknown> {
  const [first, second] = rest;
  switch (verb) {
    case "query":
      return client.query(first as string[]);
    case "watch":
      return client.watch(first as string[]);
    case "unwatch":
      return client.unwatch(first as string[] | undefined);
    case "queryRooms":
      return client.queryRooms(first as string[]);
    case "watchRooms":
      return client.watchRooms(first as string[]);
    case "unwatchRooms":
      return client.unwatchRooms(first as string[] | undefined);
    case "message":
      return client.sendMessage(first as string, second);
    case "update":
      return client.update(first as Change);
    case "away":
      return client.away();
    case "back":
      return client.back();
    case "logout":
      return client.logout(first as "logout" | "background" | undefined);
    default:
      return Promise.reject(new EncodeError(`no such verb: ${String(verb)}`));
  }
}

const EVENTS = ["connected", "disconnected", "goodbye", "message", "presence", "room", "watchEnded"] as const;
for (const name of EVENTS) {
  client.on(name, (event) => {
    print({ ...event, event: name });
  });
}
client.on("end", (error) => {
  print({ event: "end", error });
  process.exitCode = error ? 1 : 0;
  process.stdin.destroy();
});

const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const command = JSON.parse(line) as unknown[];
  execute(command).then(
    (answer) => {
      print({ verb: command[0], answer: answer ?? null });
    },
    (error: unknown) => {
      print({ verb: command[0], error });
    },
  );
});
lines.on("close", () => {
  client.logout().catch((error: unknown) => {
    if (!(error instanceof PresenceError)) {
      throw error;
    } // else the client has ended anyway
  });
});

client.connect().catch(() => undefined); // `end` reports the error
