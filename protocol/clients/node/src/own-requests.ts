/**
 * Requests that the client makes by itself: what it restores on a new connection, the watches that nobody
 * waits for, and the question for users who were hidden.
 *
 * - Passes, and what the login could not carry, come before watches, whose answers depend on them.
 * - A server that is busy, fails or does not answer is asked again. The pauses grow with the failures of one
 *   request: another one, or the same a day later, begins anew.
 * - When a pass or a token was taken, hidden users are asked for once, after the last pass that is pending.
 */

import { mayReconnect } from "./constants.js";
import type { Environment } from "./environment.js";
import { RequestFailed, RequestTimeout, retryAfterMs, ServerFailed } from "./errors.js";
import { Backoff } from "./reconnect.js";

const MAX_IN_FLIGHT = 2; // a server allows few pending requests per client

/** A request that is repeated until the server grants it, or refuses it for good. */
export interface OwnRequest {
  readonly kind: "rest" | "pass" | "watch";
  /** The users whom it asks for now. */
  readonly uids: readonly string[];
  /** Sends it; rejects if the server does not grant it. Null if it is not needed any more. */
  send(): Promise<unknown> | null;
  /**
   * The server has refused it for good; returns what to request instead.
   *
   * @param others for whom other requests of the client ask.
   */
  refused(error: RequestFailed, others: ReadonlySet<string>): readonly OwnRequest[];
}

/** One connection's share. */
interface Round {
  readonly first: Attempt[]; // queued: the rest of the login, and passes
  readonly watches: Attempt[]; // queued
  readonly timers: Set<() => void>; // of requests to be repeated; each prevents one
  readonly unsettled: Set<Attempt>; // queued, in flight, or to be repeated
  firstInFlight: number;
  inFlight: number; // all
  passesPending: number; // not settled yet, whoever gives them
  sightChanged: boolean; // since hidden users were asked for
  hiddenPending: number; // requests for hidden users that are not settled yet
}

interface Attempt {
  readonly request: OwnRequest;
  readonly backoff: Backoff;
  /** Whether it asks for users who were hidden. */
  readonly isForHidden: boolean;
}

export class OwnRequests {
  /** How often a pass or a token was taken: users hidden in an answer to an earlier request may be seen now. */
  sight = 0;
  private round: Round | null = null; // null: not connected

  /** @param askForHidden returns requests for the hidden users that no queued watch asks for anyway. */
  constructor(
    private readonly environment: Environment,
    private readonly askForHidden: (queued: readonly OwnRequest[]) => readonly OwnRequest[],
  ) {}

  /** A new connection is logged in. */
  start(requests: readonly OwnRequest[]): void {
    this.stop();
    const none = { firstInFlight: 0, inFlight: 0, passesPending: 0, hiddenPending: 0 };
    this.round = {
      first: [],
      watches: [],
      timers: new Set(),
      unsettled: new Set(),
      sightChanged: false,
      ...none,
    };
    this.add(requests);
  }

  /** The connection is lost, or the client has ended. */
  stop(): void {
    this.round?.timers.forEach((prevent) => prevent());
    this.round = null;
  }

  /** Makes requests, if there is a connection. */
  add(requests: readonly OwnRequest[]): void {
    if (this.round) {
      this.queue(this.round, requests, false);
    }
  }

  /** The program gives a pass; `answer` settles with its answer. */
  passGiven(answer: Promise<unknown>): void {
    const { round } = this;
    if (round) {
      round.passesPending += 1;
      const settled = (granted: boolean): void => {
        round.passesPending -= 1;
        this.noteSight(round, granted);
      };
      answer.then(
        () => settled(true),
        () => settled(false),
      );
    }
  }

  /** The server has taken a token, which may show users who were hidden. */
  tokenTaken(): void {
    if (this.round) {
      this.noteSight(this.round, true);
    }
  }

  /** The answer to a watch that was sent at this `sight` has hidden users. */
  usersAreHidden(sight: number): void {
    if (this.round && sight < this.sight) {
      this.noteSight(this.round, true);
    }
  }

  private noteSight(round: Round, changed: boolean): void {
    this.sight += changed ? 1 : 0;
    round.sightChanged ||= changed;
    if (round.sightChanged && round.passesPending === 0 && round.hiddenPending === 0) {
      round.sightChanged = false;
      this.queue(round, this.askForHidden(round.watches.map(({ request }) => request)), true);
    }
  }

  private queue(round: Round, requests: readonly OwnRequest[], isForHidden: boolean): void {
    if (round !== this.round) {
      return; // of an earlier connection
    }
    for (const request of requests) {
      round.passesPending += request.kind === "pass" ? 1 : 0;
      round.hiddenPending += isForHidden ? 1 : 0;
      const queue = request.kind === "watch" ? round.watches : round.first;
      const attempt = { request, backoff: new Backoff(), isForHidden };
      round.unsettled.add(attempt);
      queue.push(attempt);
    }
    this.send(round);
  }

  private send(round: Round): void {
    while (round === this.round && round.inFlight < MAX_IN_FLIGHT) {
      const attempt = round.first.shift() ?? (round.firstInFlight === 0 ? round.watches.shift() : undefined);
      if (!attempt) {
        return;
      }
      const answer = attempt.request.send();
      if (!answer) {
        this.done(round, attempt, false);
        continue;
      }
      const count = (change: 1 | -1): void => {
        round.inFlight += change;
        round.firstInFlight += attempt.request.kind === "watch" ? 0 : change;
      };
      count(1);
      answer.then(
        () => {
          count(-1);
          this.done(round, attempt, true);
          this.send(round);
        },
        (error: unknown) => {
          count(-1);
          this.failed(round, attempt, error);
          this.send(round);
        },
      );
    }
  }

  /** A request was granted, refused for good, or is not needed any more. */
  private done(round: Round, attempt: Attempt, granted: boolean): void {
    const { request, isForHidden } = attempt;
    round.unsettled.delete(attempt);
    round.hiddenPending -= isForHidden ? 1 : 0;
    round.passesPending -= request.kind === "pass" ? 1 : 0;
    this.noteSight(round, granted && request.kind === "pass");
  }

  private failed(round: Round, attempt: Attempt, error: unknown): void {
    if (error instanceof RequestFailed && !mayReconnect(error.code)) {
      round.unsettled.delete(attempt);
      const others = new Set([...round.unsettled].flatMap(({ request }) => request.uids));
      this.queue(round, attempt.request.refused(error, others), attempt.isForHidden);
      this.done(round, attempt, false);
    } else if (
      error instanceof RequestFailed ||
      error instanceof ServerFailed ||
      error instanceof RequestTimeout
    ) {
      if (round !== this.round) {
        return;
      }
      const prevent = this.environment.after(
        attempt.backoff.nextMs(this.environment.chance, 0, retryAfterMs(error)),
        () => {
          round.timers.delete(prevent);
          (attempt.request.kind === "watch" ? round.watches : round.first).push(attempt);
          this.send(round);
        },
      );
      round.timers.add(prevent);
    } else {
      this.done(round, attempt, false); // the connection is lost, and the next one starts again
    }
  }
}
