/** Connects a `ClientMachine` to its surroundings: one connection, one timer, one call of the token function. */

import type { Connection, Connector } from "./connector.js";
import type { Environment } from "./environment.js";
import type { ClientMachine } from "./machine.js";
import type { Effects } from "./session.js";
import type { TokenSource } from "./tokens.js";

const BUSY_MS = 20; // a turn of the event loop that takes so long shows that the program was busy
const MAX_TURNS = 5; // for a program that is always busy: its keepalives must be sent, too

/** Keeps a machine connected as its state demands, and passes on its effects. */
export class Link {
  private connection: Connection | null = null;
  private attempt: object | null = null; // identifies the current connection
  private preventTick: (() => void) | null = null;
  private ignoreWakes: (() => void) | null = null; // null: there is no run
  private tickAt = Infinity; // for when the timer is set
  private pendingFetch: object | null = null; // identifies the current call

  /** @param onEffects receives effects in order; may be called again before it has returned. */
  constructor(
    private readonly machine: ClientMachine,
    private readonly connector: Connector,
    private readonly tokenSource: TokenSource | null,
    private readonly environment: Environment,
    private readonly onEffects: (effects: Effects) => void,
  ) {}

  /** Synchronizes with the machine after every input: connection, outgoing bytes, token, timer, effects. */
  update(effects: Effects = []): void {
    const { machine } = this;
    if (this.attempt && !machine.connected && machine.state !== "connecting") {
      this.drop();
    }
    if (!this.attempt && machine.state === "connecting") {
      effects = [...effects, ...this.open()];
    }
    if (this.connection && machine.connected) {
      const outgoing = machine.takeOutgoing();
      if (outgoing.length > 0) {
        effects = [...effects, ...this.write(this.connection, outgoing)];
      }
    }
    if (!machine.wantsToken) {
      this.pendingFetch = null; // a call that is still running took too long
    } else if (this.tokenSource && !this.pendingFetch) {
      this.pendingFetch = {};
      void this.fetchToken(this.tokenSource, this.pendingFetch);
    }
    this.followWakes();
    this.scheduleTick();
    this.onEffects(effects);
  }

  private followWakes(): void {
    const { environment, machine } = this;
    if (machine.isOver) {
      this.ignoreWakes?.();
      this.ignoreWakes = null;
    } else {
      this.ignoreWakes ??= environment.onWake(() => {
        machine.wake(environment.now());
        this.update();
      });
    }
  }

  private async fetchToken(source: TokenSource, fetch: object): Promise<void> {
    await Promise.resolve(); // run the program's function after this update
    let token: unknown;
    try {
      token = await source();
    } catch (error) {
      token = error instanceof Error ? error : new Error(messageOf(error), { cause: error });
    }
    if (this.pendingFetch === fetch) {
      this.pendingFetch = null;
      this.update(this.machine.tokenFetched(token, this.environment.now()));
    }
  }

  private open(): Effects {
    const attempt = {};
    const ifCurrent = (input: (now: number) => Effects): void => {
      if (this.attempt === attempt) {
        this.update(input(this.environment.now()));
      }
    };
    try {
      const connection: Partial<Connection> | null | undefined = this.connector.connect({
        opened: () => {
          ifCurrent((now) => this.machine.established(now));
        },
        received: (bytes) => {
          ifCurrent((now) => this.machine.received(bytes, now));
        },
        closed: (reason) => {
          ifCurrent((now) => {
            this.connection = this.attempt = null;
            return this.machine.disconnected(messageOf(reason), now);
          });
        },
      });
      if (typeof connection?.write !== "function" || typeof connection.destroy !== "function") {
        throw new TypeError("the connector must return a connection, with write and destroy");
      }
      this.connection = connection as Connection;
      this.attempt = attempt;
      return [];
    } catch (error) {
      return this.machine.disconnected(messageOf(error), this.environment.now());
    }
  }

  private write(connection: Connection, bytes: Uint8Array): Effects {
    try {
      connection.write(bytes);
      return [];
    } catch (error) {
      if (this.connection !== connection) {
        return []; // it has reported its end, too
      }
      this.drop();
      return this.machine.disconnected(messageOf(error), this.environment.now());
    }
  }

  private drop(): void {
    const { connection } = this;
    this.connection = this.attempt = null; // what it still reports is ignored
    try {
      connection?.destroy();
    } catch (error) {
      this.environment.throwLater(error);
    }
  }

  /** Sets the timer, unless it is set for no later than the deadline: then it is set anew when it has fired. */
  private scheduleTick(): void {
    const { deadline } = this.machine;
    if (this.tickAt <= deadline && deadline !== Infinity) {
      return;
    }
    this.preventTick?.();
    this.preventTick = null;
    this.tickAt = deadline;
    if (deadline !== Infinity) {
      const delayMs = Math.max(0, Math.ceil(deadline - this.environment.now()));
      this.preventTick = this.environment.after(delayMs, () => this.tickAfterInput(MAX_TURNS));
    }
  }

  /**
   * Reads the input before it looks at the clock: an answer that arrived in time counts even if the program was
   * busy. If it was so while the input was read, more may have arrived: then this takes another turn.
   */
  private tickAfterInput(turns: number): void {
    const { environment, machine } = this;
    const startedAt = environment.now();
    this.preventTick = environment.afterInput(() => {
      if (environment.now() - startedAt > BUSY_MS && turns > 1) {
        this.tickAfterInput(turns - 1);
      } else {
        this.preventTick = null;
        this.tickAt = Infinity;
        this.update(machine.tick(environment.now()));
      }
    });
  }
}

/** Returns the reason that a connector or a token function gave, for people. */
function messageOf(reason: unknown): string {
  try {
    return reason instanceof Error ? reason.message : String(reason ?? "");
  } catch {
    return ""; // an object that has no text
  }
}
