/** Async iterators over what the client reports, each with a bounded queue of its own. */

import { checkSignal, onAbort } from "./aborts.js";
import type { PresenceError } from "./errors.js";
import type {
  Connected,
  Delivered,
  Disconnected,
  Dropped,
  Goodbye,
  PresenceChanged,
  RoomChanged,
  WatchEnded,
} from "./pushes.js";
import type { Run } from "./runs.js";

/**
 * The queue of one iterator, in order of arrival; O(1) each.
 *
 * If the program does not read, a full queue drops a change of presence for which a later one of the same user
 * is queued, which the reader does not miss: it gets the newest state. If there is none, the oldest element is
 * dropped, and a `Dropped` takes its place.
 */
export class PushStream<T extends { readonly type: string }> implements AsyncIterableIterator<T | Dropped> {
  /** Elements dropped, and changes dropped because a later one was queued. */
  dropped = 0;
  superseded = 0;
  private readonly elements = new Map<number, T>(); // by number, in order
  private readonly newest = new Map<string, number>(); // by user, of a queued change
  private stale: number[] = []; // changes that a later one supersedes; some may be read by now
  private readonly readers: Reader<T | Dropped>[] = [];
  private lastNumber = 0;
  private droppedUnread = 0; // all before the first element
  private end: { readonly error: unknown } | null = null;
  private readonly forgetSignal: () => void;

  /**
   * @param run the run with which it ends.
   * @param onClose called once, when no element is to be put any more.
   */
  constructor(
    readonly run: Run,
    private readonly kind: Dropped["kind"],
    private readonly capacity: number,
    private readonly onClose: (stream: PushStream<T>) => void,
    private readonly signal: AbortSignal | undefined,
  ) {
    checkSignal(signal);
    this.forgetSignal = onAbort(signal, () => this.aborted());
    if (signal?.aborted) {
      this.aborted();
    }
  }

  put(element: T): void {
    const reader = this.readers.shift();
    if (reader) {
      reader.resolve({ value: element, done: false });
      return;
    }
    const number = (this.lastNumber += 1);
    const uid = userOf(element);
    const before = uid === null ? undefined : this.newest.get(uid);
    if (before !== undefined) {
      this.stale.push(before);
      if (this.stale.length > 2 * this.capacity) {
        this.stale = this.stale.filter((each) => this.elements.has(each));
      }
    }
    if (uid !== null) {
      this.newest.set(uid, number);
    }
    if (this.elements.size >= this.capacity) {
      this.makeRoom();
    }
    this.elements.set(number, element);
  }

  /** No element follows: the iterator ends after the queued ones, with an error unless it is null. */
  finish(error: unknown): void {
    if (this.end) {
      return;
    }
    this.end = { error };
    this.forgetSignal();
    this.onClose(this);
    const [first, ...others] = this.readers.splice(0);
    if (first) {
      this.finishReader(first);
    }
    others.forEach((reader) => reader.resolve({ value: undefined, done: true }));
  }

  next(): Promise<IteratorResult<T | Dropped, undefined>> {
    return new Promise((resolve, reject) => {
      if (this.droppedUnread > 0) {
        const value: Dropped = { type: "dropped", kind: this.kind, count: this.droppedUnread };
        this.droppedUnread = 0;
        resolve({ value, done: false });
      } else if (this.elements.size > 0) {
        resolve({ value: this.takeOldest(), done: false });
      } else if (this.end) {
        this.finishReader({ resolve, reject });
      } else {
        this.readers.push({ resolve, reject });
      }
    });
  }

  /** Called by `break`: drops what is queued. */
  return(): Promise<IteratorResult<T | Dropped, undefined>> {
    this.clear();
    this.finish(null);
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  private aborted(): void {
    this.clear();
    this.finish(this.signal?.reason);
  }

  private clear(): void {
    this.elements.clear();
    this.droppedUnread = 0;
  }

  /** Reports the end; the error once. */
  private finishReader({ resolve, reject }: Reader<T | Dropped>): void {
    const error = this.end?.error ?? null;
    this.end = { error: null };
    if (error === null) {
      resolve({ value: undefined, done: true });
    } else {
      reject(error);
    }
  }

  private takeOldest(): T {
    const [number, element] = this.elements.entries().next().value as [number, T];
    this.elements.delete(number);
    const uid = userOf(element);
    if (uid !== null && this.newest.get(uid) === number) {
      this.newest.delete(uid);
    }
    return element;
  }

  private makeRoom(): void {
    for (let number = this.stale.shift(); number !== undefined; number = this.stale.shift()) {
      if (this.elements.delete(number)) {
        this.superseded += 1;
        return;
      }
    }
    this.takeOldest();
    this.dropped += 1;
    this.droppedUnread += 1;
  }
}

interface Reader<T> {
  resolve(result: IteratorResult<T, undefined>): void;
  reject(error: unknown): void;
}

/** The user whose change it is; null if it is none. */
function userOf(element: { readonly type: string }): string | null {
  return element.type === "presence" ? (element as PresenceChanged).uid : null;
}

const MAX_CONNECTION_CHANGES = 100; // more than an hour of failed attempts, of which each waits up to a minute

type ConnectionChange = Connected | Disconnected | Goodbye;
export type Element = Delivered | PresenceChanged | WatchEnded | RoomChanged | ConnectionChange;

/** The open iterators of one client. */
export class Streams {
  private readonly open = {
    messages: new Set<PushStream<Delivered>>(),
    presence: new Set<PushStream<PresenceChanged | WatchEnded>>(),
    rooms: new Set<PushStream<RoomChanged>>(),
    connection: new Set<PushStream<ConnectionChange>>(),
  };
  private readonly closed = { dropped: 0, superseded: 0 }; // of iterators that are closed

  constructor(
    private readonly maxMessages: number,
    private readonly maxChanges: number,
  ) {}

  messages(run: Run, signal: AbortSignal | undefined): PushStream<Delivered> {
    return this.opened(run, "messages", this.open.messages, this.maxMessages, signal);
  }

  presenceChanges(run: Run, signal: AbortSignal | undefined): PushStream<PresenceChanged | WatchEnded> {
    return this.opened(run, "presence", this.open.presence, this.maxChanges, signal);
  }

  roomChanges(run: Run, signal: AbortSignal | undefined): PushStream<RoomChanged> {
    return this.opened(run, "rooms", this.open.rooms, this.maxChanges, signal);
  }

  connectionChanges(run: Run, signal: AbortSignal | undefined): PushStream<ConnectionChange> {
    return this.opened(run, "connection", this.open.connection, MAX_CONNECTION_CHANGES, signal);
  }

  put(element: Element): void {
    switch (element.type) {
      case "message":
        this.open.messages.forEach((stream) => stream.put(element));
        break;
      case "presence":
      case "watchEnded":
        this.open.presence.forEach((stream) => stream.put(element));
        break;
      case "room":
        this.open.rooms.forEach((stream) => stream.put(element));
        break;
      default:
        this.open.connection.forEach((stream) => stream.put(element));
    }
  }

  /** A run has ended. */
  finish(run: Run, error: PresenceError | null): void {
    for (const stream of this.all().filter((each) => each.run === run)) {
      stream.finish(error);
    }
  }

  /** Elements dropped, and changes left out because a later one was queued. */
  counts(): { dropped: number; superseded: number } {
    const counts = { ...this.closed };
    for (const { dropped, superseded } of this.all()) {
      counts.dropped += dropped;
      counts.superseded += superseded;
    }
    return counts;
  }

  private all(): { run: Run; dropped: number; superseded: number; finish(error: unknown): void }[] {
    const { messages, presence, rooms, connection } = this.open;
    return [...messages, ...presence, ...rooms, ...connection];
  }

  private opened<T extends Element>(
    run: Run,
    kind: Dropped["kind"],
    streams: Set<PushStream<T>>,
    capacity: number,
    signal: AbortSignal | undefined,
  ): PushStream<T> {
    const onClose = (stream: PushStream<T>): void => {
      streams.delete(stream);
      this.closed.dropped += stream.dropped;
      this.closed.superseded += stream.superseded;
    };
    const stream = new PushStream<T>(run, kind, capacity, onClose, signal);
    if (!signal?.aborted) {
      streams.add(stream);
    }
    return stream;
  }
}
