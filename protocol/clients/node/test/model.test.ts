/**
 * The model of the client, in small; with PRESENCE_MODEL_STEPS=100000 as long as one likes, from PRESENCE_MODEL_SEED
 * on. Faults of earlier versions, planted back, are found.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, type Packet, PresenceClient } from "../src/index.js";
import { LoginToken } from "../src/login-token.js";
import { MessageLines, type Moves } from "../src/message-lines.js";
import { OwnRequests } from "../src/own-requests.js";
import { Restoration } from "../src/restoration.js";
import { Session } from "../src/session.js";
import { Backoff } from "../src/reconnect.js";
import { WatchedRooms } from "../src/watched-rooms.js";
import { WatchedUsers } from "../src/watches.js";
import { World } from "./model.js";

const STEPS_PER_WORLD = 250;
const STEPS = Number(process.env["PRESENCE_MODEL_STEPS"] ?? 2500);
const SEED = Number(process.env["PRESENCE_MODEL_SEED"] ?? 1);
const SEEDS_TO_FIND_A_FAULT = 400; // the rarest faults show in one world of some hundreds
// Seeds that have found one of the faults, which are tried first.
const LIKELY_SEEDS = [1, 2, 10, 15, 24, 37, 42, 47, 53, 55, 368];

/** Runs the world of a seed; returns what it has found, with the last steps before it. */
async function problemOf(seed: number): Promise<string | null> {
  const world = new World(seed);
  try {
    await world.run(STEPS_PER_WORLD);
    return null;
  } catch (error) {
    const last = world.trace.slice(-40).join("\n");
    return `seed ${seed}: ${error instanceof Error ? error.message : String(error)}\n${last}`;
  }
}

test(`${STEPS} steps find nothing`, async () => {
  for (let steps = 0; steps < STEPS; steps += STEPS_PER_WORLD) {
    assert.equal(await problemOf(SEED + steps / STEPS_PER_WORLD), null);
  }
});

type Methods = Record<string, (...given: never[]) => unknown>;

/** Replaces a method of a class; `make` gets the original. */
function planted(
  name: string,
  { prototype }: { readonly prototype: object },
  method: string,
  complaint: RegExp,
  make: (original: Methods[string]) => Methods[string],
): void {
  test(`planted back, it is found: ${name}`, async () => {
    const methods = prototype as Methods;
    const original = methods[method] as Methods[string];
    methods[method] = make(original);
    try {
      let found: string | null = null;
      const others = Array.from({ length: SEEDS_TO_FIND_A_FAULT }, (_, index) => index + 1);
      for (const seed of [...LIKELY_SEEDS, ...others]) {
        found ??= await problemOf(seed);
      }
      assert.match(found ?? "nothing", complaint);
    } finally {
      methods[method] = original;
    }
  });
}

interface TokenState {
  readonly refusal: unknown;
  readonly login: { readonly token: string | null };
}

planted(
  "the newest token is compared instead of the refused one",
  LoginToken,
  "whyStale",
  /no_token, although/,
  (original) => {
    return function (this: TokenState, token: string, now: number): unknown {
      const isNewest = this.refusal !== null && token === this.login.token;
      return isNewest
        ? "the server has refused it"
        : (original as (...given: unknown[]) => unknown).call(this, token, now);
    } as Methods[string];
  },
);

planted(
  "connect keeps its promise for ever",
  PresenceClient,
  "connect",
  /promise of an earlier run/,
  (original) => {
    return function (this: { kept?: unknown }): unknown {
      return (this.kept ??= original.call(this));
    };
  },
);

planted(
  "a client that was revived has no end",
  PresenceClient,
  "reportOne",
  /one end each|the client is/,
  (original) => {
    return function (this: { ended?: boolean }, effect: { type: string }): unknown {
      if (effect.type === "end" && this.ended) {
        return false;
      }
      this.ended ||= effect.type === "end";
      return (original as (...given: unknown[]) => unknown).apply(this, [...arguments]);
    } as Methods[string];
  },
);

planted(
  "pauses grow for as long as a connection lasts",
  OwnRequests,
  "failed",
  /not asked for in time/,
  (original) => {
    return function (this: unknown, round: { backoff?: Backoff }, attempt: { backoff: Backoff }): unknown {
      attempt.backoff = round.backoff ??= new Backoff();
      return (original as (...given: unknown[]) => unknown).apply(this, [...arguments]);
    } as Methods[string];
  },
);

planted(
  "messages in flight overtake one that is sent again",
  MessageLines,
  "join",
  /got message \d+ after/,
  (original) => {
    return function (this: unknown): unknown {
      (original as (...given: unknown[]) => unknown).apply(this, [...arguments]);
      return true;
    } as Methods[string];
  },
);

planted(
  "a message is sent again although a later one was delivered",
  MessageLines,
  "delivered",
  /got message \d+ after/,
  (original) => {
    return function (this: { lines: Map<string, { lastDelivered: number }> }, to: string): unknown {
      const moves = (original as (...given: unknown[]) => Moves).apply(this, [...arguments]);
      const line = this.lines.get(to);
      if (line) {
        line.lastDelivered = 0;
      }
      return moves;
    } as Methods[string];
  },
);

planted(
  "a message is sent again although a later one has perhaps been delivered",
  MessageLines,
  "uncertain",
  /got message \d+ after/,
  () => {
    return function (this: { leave: (...given: unknown[]) => unknown }, ...given: unknown[]): unknown {
      return { toSend: this.leave(...given), overtaken: [] };
    } as Methods[string];
  },
);

planted(
  "each message waits for the answer to the one before it",
  MessageLines,
  "noteDelivery",
  /wait soon after a delivery/,
  () => () => undefined,
);

planted(
  "a pause that is over is forgotten",
  MessageLines,
  "pauseIsOver",
  /waits for nothing/,
  () => () => [],
);

planted(
  "a refused watch that is not waited for any more ends the client",
  Session,
  "handlePacket",
  /without a reason/,
  (original) => {
    return function (this: { refusal: unknown; requests: Map<unknown, unknown> }, packet: Packet): unknown {
      const result = (original as (...given: unknown[]) => unknown).apply(this, [...arguments]);
      const { code } = packet.payload as { code?: number };
      if (code === Code.TOO_LARGE && !this.requests.has(packet.id)) {
        this.refusal ??= { code, reason: "too_large", message: "", retryAfterMs: null };
      }
      return result;
    } as Methods[string];
  },
);

planted(
  "a refused token of an update is forgotten",
  LoginToken,
  "stop",
  /a refused token was sent again/,
  (original) => {
    return function (this: { refusedToken: string | null }): unknown {
      this.refusedToken = null;
      return original.call(this);
    } as Methods[string];
  },
);

planted(
  "users who have left the roster while the client was offline stay",
  WatchedUsers,
  "applyRoster",
  /client and server disagree/,
  (original) => {
    return function (this: { watches: Map<string, { isListed: boolean }> }): unknown {
      this.watches.forEach((watch) => (watch.isListed = false));
      return (original as (...given: unknown[]) => unknown).apply(this, [...arguments]);
    } as Methods[string];
  },
);

planted(
  "a listed user whom the program names is not named to the server",
  WatchedUsers,
  "add",
  /client and server disagree/,
  (original) => {
    return function (this: { known(isListed: boolean): string[] }, uids: string[]): unknown {
      const listed = this.known(true);
      const added = (original as (...given: unknown[]) => string[]).call(this, uids);
      return added.filter((uid) => !listed.includes(uid));
    } as Methods[string];
  },
);

planted(
  "a request for the roster is granted although it was unwatched since",
  WatchedUsers,
  "unwatchRoster",
  /client and server disagree|who follows the roster/,
  () => WatchedUsers.prototype.endRoster,
);

planted(
  "an older server is not asked for those who were listed",
  WatchedUsers,
  "known",
  /client and server disagree|what is shown/,
  (original) => {
    return function (this: unknown, isListed: boolean): unknown {
      const isFallback = new Error().stack?.includes("refused") === true;
      return isFallback ? [] : (original as (...given: unknown[]) => unknown).call(this, isListed);
    } as Methods[string];
  },
);

planted(
  "members who have left a room stay",
  WatchedRooms,
  "apply",
  /disagree about watched rooms/,
  (original) => {
    return function (this: unknown, row: { left: unknown }): unknown {
      const left = row.left && [];
      return (original as (...given: unknown[]) => unknown).call(this, { ...row, left });
    } as Methods[string];
  },
);

planted(
  "a room is not asked for again after a reconnect",
  Restoration,
  "roomWatch",
  /disagree about watched rooms/,
  () => () => ({ kind: "watch", uids: [], send: () => null, refused: () => [] }),
);
