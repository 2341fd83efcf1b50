/** How a client opens its connections: the interface behind which TCP, TLS or anything else is. */

/** What a connection reports; nothing before `connect` has returned, and nothing after `closed`. */
export interface ConnectionEvents {
  /** The connection is open: bytes may be written. */
  opened(): void;
  received(bytes: Uint8Array): void;
  /** It is closed, or could not be opened; `reason` is for people. */
  closed(reason: string): void;
}

/** A duplex stream of bytes, in order and without loss until it closes. */
export interface Connection {
  /** Sends bytes; called only between `opened` and `closed`. An exception is the end of the connection. */
  write(bytes: Uint8Array): void;
  /** Closes it, or stops opening it, without waiting for anything; what it still reports is ignored. */
  destroy(): void;
}

/** Opens connections: one call for each attempt. The client destroys one that takes too long. */
export interface Connector {
  /** Begins to open a connection, and returns it immediately. An exception is a failed attempt. */
  connect(events: ConnectionEvents): Connection;
}
